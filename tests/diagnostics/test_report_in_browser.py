"""The page of a diagnosis in a real browser: errors, hostile texts, keys, pointer, links, sizes, themes, print."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from counterpoint.diagnostics.report import render
from counterpoint.diagnostics.results import Text
from diagnostics import pages
from diagnostics.browser import NAMES, Browser, found

pytestmark = pytest.mark.skipif(found() is None, reason=f"no browser: none of {', '.join(NAMES)} is installed")

EXAMPLES = ["ordinary", "sixteen", "one", "undefined", "hostile", "none"]
_TITLE = "document.querySelector('#shown-title').textContent"
_CHOSEN = "document.querySelector('.chosen')?.dataset.at"
_PANEL = "document.querySelector('#numbers').innerText"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    examples = {
        "ordinary": (pages.diagnosis(), pages.texts()),
        "sixteen": (pages.diagnosis(16), pages.texts(3, 16)),
        "one": (pages.diagnosis(1, 1, level="clear"), pages.texts(1, 1)),
        "undefined": pages.undefined(),
        "hostile": pages.hostile(),
        "none": (pages.undefined()[0], []),
    }
    assert list(examples) == EXAMPLES
    for name, (diagnosis, texts) in examples.items():
        (folder / f"{name}.html").write_text(render(diagnosis, texts), encoding="utf-8")
    return folder


@pytest.fixture
def ordinary(browser: Browser, folder: Path) -> Browser:
    browser.look(motion="reduce")  # where the pointer clicks must not move away under it
    browser.open(folder / "ordinary.html")
    return browser


def worst(texts: list[Text]) -> list[tuple[float, int, int]]:
    """(gap, text, token), the worst first, by a second route."""
    found = []
    for text in texts:
        for at in range(len(text.tokens)):
            gaps = [row[at] for row in text.gap if row[at] is not None]
            if gaps:
                found.append((sum(gap or 0 for gap in gaps) / len(gaps), text.index, at))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("width", [360, 800, 1280])
def test_nothing_goes_wrong_and_nothing_sticks_out(browser: Browser, folder: Path, example: str, width: int) -> None:
    browser.look(width=width, scheme="dark" if width == 800 else "light")
    browser.open(folder / f"{example}.html")
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value("innerWidth") == width
    assert browser.complaints == []


def test_hostile_texts_are_shown_and_do_nothing(browser: Browser, folder: Path) -> None:
    browser.look()
    browser.open(folder / "hostile.html", "#text=1")
    assert browser.value("document.title").startswith("Interference: </script><script>alert(1)")
    assert browser.value("document.images.length + document.scripts.length") == 2
    assert browser.value("document.querySelectorAll('#tokens .tok').length") == len(pages.HOSTILE)
    assert browser.value("document.querySelector('#tokens .tok').textContent") == pages.HOSTILE[0]
    assert "<img src=x onerror=" in browser.value("document.querySelector('#prompt').textContent")
    for at in range(len(pages.HOSTILE)):
        browser.value(f"document.querySelectorAll('#tokens .tok')[{at}].click()")
        assert f"token {at + 1} of" in browser.value(_PANEL)
        assert browser.value("document.querySelector('#tokens .chosen').getBoundingClientRect().width") > 3
    assert browser.complaints == []


def test_the_worst_text_is_open_at_its_worst_token(ordinary: Browser) -> None:
    _, index, at = worst(list(pages.texts()))[0]
    assert ordinary.value(_TITLE) == f"Text {index}, written by the composed model"
    assert ordinary.value(_CHOSEN) == str(at)
    assert ordinary.value("document.activeElement === document.body && scrollY === 0")


def test_tokens_spell_the_continuation(ordinary: Browser) -> None:
    text = pages.text(worst(list(pages.texts()))[0][1])
    shown = ordinary.value("document.querySelector('#tokens').textContent")
    assert shown == "".join(text.tokens).replace("\n", "↵\n")


def test_a_token_has_the_colour_of_what_moved_it_most(browser: Browser, folder: Path) -> None:
    flat = pages.text(0, 3, 6)
    moved = [[0.3, 0.15, -0.9, 0.1, 2.5, None], [0.2, -0.1, 0.4, 0.1, -2.6, 0.11], [-0.1, 0.0, 0.1, 0.1, 0.0, None]]
    text = flat.model_copy(update={"moved": moved, "orphan": [False] * 5 + [True]})
    path = folder / "moved.html"
    path.write_text(render(pages.diagnosis(), [text]), encoding="utf-8")
    browser.look()
    browser.open(path)
    classes = browser.value("[...document.querySelectorAll('#tokens .tok')].map(t => [...t.classList].join(' '))")
    assert [c.replace(" chosen", "") for c in classes] == [
        "tok c0 u0 s1",
        "tok c0 u0 s1",
        "tok c0 u0 s2 against",
        "tok",
        "tok c1 u1 s4 against",
        "tok c1 u1 s1 orphan",
    ]
    letters = browser.value("[...document.querySelectorAll('#tokens .ink')].map(t => t.dataset.letter ?? '')")
    assert letters == ["A", "", "A−", "", "B−", "B"]


def test_the_score_has_a_staff_a_component_and_takes_clicks(ordinary: Browser) -> None:
    assert ordinary.value("document.querySelectorAll('#score .staff').length") == 4
    assert ordinary.value("document.querySelector('#score svg').getBoundingClientRect().height") == 4 * 28
    text = pages.text(worst(list(pages.texts()))[0][1])
    bars = ordinary.value(
        "[...document.querySelectorAll('#score .bars')].map(b => b.getAttribute('d').split('M').length - 1)"
    )
    assert bars[0] == sum(round(value or 0, 3) != 0 for value in text.moved[0])
    ordinary.click("#score svg")  # in its middle, between two tokens
    assert ordinary.value(_CHOSEN) in ("31", "32")


@pytest.mark.parametrize("index", [3, 17])
def test_a_link_opens_a_text(browser: Browser, folder: Path, index: int) -> None:
    browser.look()
    browser.open(folder / "ordinary.html", f"#text={index}&token=9")
    assert browser.value(_TITLE).startswith(f"Text {index},")
    assert browser.value(_CHOSEN) == "8"
    assert f"number {index}," in browser.value("document.querySelector('#prompt').textContent") or index % 3 != 1
    assert browser.value("document.activeElement.dataset.at") == "8"


@pytest.mark.parametrize("fragment", ["#text=99", "#text=", "#text=__proto__", "#token=4", "#%E0%A4%A", "#reading"])
def test_a_wrong_link_does_no_harm(browser: Browser, folder: Path, fragment: str) -> None:
    browser.look()
    browser.open(folder / "ordinary.html", fragment)
    assert browser.value(_TITLE).startswith("Text ")
    assert browser.complaints == []


@pytest.mark.parametrize(("token", "at"), [("999", 63), ("-5", 0), ("x", 0)])
def test_a_token_out_of_range_is_brought_back(browser: Browser, folder: Path, token: str, at: int) -> None:
    browser.look()
    browser.open(folder / "ordinary.html", f"#text=2&token={token}")
    assert browser.value(_CHOSEN) == str(at)


def test_the_address_follows_and_back_goes_back(ordinary: Browser) -> None:
    before = ordinary.value(_TITLE)
    ordinary.value("location.hash = '#text=5'; new Promise(done => setTimeout(done, 100))")
    assert ordinary.value(_TITLE).startswith("Text 5,")
    ordinary.click("#list li:nth-child(3) button")
    third = ordinary.value(_TITLE)
    assert third not in (before, "Text 5, written by the composed model")
    assert ordinary.value("location.hash").startswith(f"#text={third.split(',')[0][5:]}&token=")
    ordinary.value("history.back(); new Promise(done => setTimeout(done, 200))")
    assert ordinary.value(_TITLE).startswith("Text 5,")


def test_the_worst_positions_jump_to_their_token(ordinary: Browser) -> None:
    for number, (_, index, at) in enumerate(worst(list(pages.texts()))[:3], 1):
        ordinary.click(f".worst li:nth-child({number}) a")
        ordinary.value("new Promise(done => setTimeout(done, 50))")
        assert ordinary.value(_TITLE).startswith(f"Text {index},")
        assert ordinary.value("document.activeElement.dataset.at") == str(at)


def test_pointer_hovers_and_clicks(ordinary: Browser) -> None:
    ordinary.click("#tokens .tok:nth-child(5) .ink", kinds=["mouseMoved"])
    assert "token 5 of 64" in ordinary.value(_PANEL)
    assert ordinary.value(_CHOSEN) != "4"
    ordinary.click("#tokens .tok:nth-child(5) .ink")
    assert ordinary.value(_CHOSEN) == "4"
    ordinary.click("#verdict h1", kinds=["mouseMoved"])
    assert "token 5 of 64" in ordinary.value(_PANEL)


def test_keys_go_from_token_to_token(ordinary: Browser) -> None:
    ordinary.value("document.querySelector('#tokens [tabindex=\"0\"]').focus()")
    for key, at in [
        ("Home", 0),
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("ArrowLeft", 1),
        ("End", 63),
        ("ArrowRight", 63),
    ]:
        ordinary.press(key)
        assert ordinary.value("document.activeElement.dataset.at") == str(at)
        assert f"token {at + 1} of 64" in ordinary.value(_PANEL)
    assert ordinary.value("document.querySelectorAll('#tokens [tabindex=\"0\"]').length") == 1
    assert "log Z" in ordinary.value("document.querySelector('#spoken').textContent")


def test_the_panel_has_the_numbers_of_a_token(browser: Browser, folder: Path) -> None:
    browser.look()
    browser.open(folder / "ordinary.html", "#text=2&token=11")
    text = pages.text(2, trouble=0.5 + 3 / 8)
    rows = browser.value("[...document.querySelectorAll('#numbers tr')].map(r => [...r.cells].map(c => c.textContent))")

    def written(value: float | None, sign: bool = False) -> str:
        if value is None:
            return "—"
        value = round(value, 3) or 0.0
        return format(
            value, f"{'+' if sign and value else ''}.{3 if abs(value) < 0.0995 else 2 if abs(value) < 9.995 else 1}f"
        ).replace("-", "−")

    for i in range(3):
        assert rows[1 + i][1:] == [
            written(text.moved[i][10], sign=True),
            written(text.activity[i][10]),
            written(text.gap[i][10]),
        ]
    assert [row[1] for row in rows[4:]] == [
        written(text.log_probs[10]),
        written(text.base_log_probs[10]),
        written(text.log_partition[10], sign=True),
        "yes" if text.orphan[10] else "no",
    ]


def listed(browser: Browser) -> list[int]:
    marks: list[str] = browser.value("[...document.querySelectorAll('#list .marks')].map(m => m.textContent)")
    return [int(mark.split(" ")[0]) for mark in marks]


def test_three_orders_of_texts(ordinary: Browser) -> None:
    texts = list(pages.texts())
    by_gap = list(dict.fromkeys(index for _, index, _ in worst(texts)))
    by_partition = sorted(texts, key=lambda text: -max(round(abs(v or 0), 3) for v in text.log_partition))
    assert listed(ordinary) == by_gap[:8]
    ordinary.click("input[value=partition]")
    assert listed(ordinary) == [text.index for text in by_partition[:8]]
    ordinary.click("input[value=file]")
    assert listed(ordinary) == list(range(8))
    ordinary.click("#later")
    assert listed(ordinary) == list(range(8, 16))
    ordinary.click("#earlier")
    assert listed(ordinary) == list(range(8))


def test_next_and_previous_follow_the_order(ordinary: Browser) -> None:
    by_gap = list(dict.fromkeys(index for _, index, _ in worst(list(pages.texts()))))
    assert ordinary.value("document.querySelector('#previous').disabled")
    for index in by_gap[1:10]:
        ordinary.click("#next")
        assert ordinary.value(_TITLE).startswith(f"Text {index},")
    assert listed(ordinary) == by_gap[8:16]
    ordinary.click("#previous")
    assert ordinary.value(_TITLE).startswith(f"Text {by_gap[8]},")


def test_prompts_can_be_searched(ordinary: Browser) -> None:
    ordinary.value(
        "const f = document.querySelector('#find'); f.value = 'NUMBER 1'; f.dispatchEvent(new Event('input'))"
    )
    assert sorted(listed(ordinary)) == [1, 10, 13, 16, 19]
    ordinary.value("f.value = 'nowhere to be found'; f.dispatchEvent(new Event('input'))")
    assert listed(ordinary) == []
    assert ordinary.complaints == []


def test_without_scripts_all_but_the_browser_of_texts_is_there(browser: Browser, folder: Path) -> None:
    browser.look(scripts=False)
    browser.open(folder / "ordinary.html")
    text = browser.value("document.body.innerText")
    browser.look()
    for words in (
        "get in each other’s way",
        "Scripts are off",
        "Retained evidence",
        "+0.32",
        "The worst single positions",
    ):
        assert words in text
    assert "Order of texts" not in text


def test_on_paper_controls_are_gone_and_the_text_stays(browser: Browser, folder: Path) -> None:
    browser.look(media="print")
    browser.open(folder / "ordinary.html")
    height = "(s => document.querySelector(s).getBoundingClientRect().height)"
    for gone in (".choice", "nav", ".bar p"):
        assert browser.value(f"{height}('{gone}')") == 0
    for kept in ("#tokens", ".components", ".matrix", ".worst", "#numbers", ".reasons"):
        assert browser.value(f"{height}('{kept}')") > 40
    assert browser.pdf().startswith(b"%PDF")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_enough_in_both_themes(browser: Browser, folder: Path, scheme: str) -> None:
    browser.look(scheme=scheme)
    browser.open(folder / "sixteen.html")
    dark = browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(22, 23, 26)"
    assert dark == (scheme == "dark")
    failures = browser.value(
        """(() => {
        const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
        const light = ([r, g, b]) => {
          const linear = (v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
          return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
        };
        const behind = (element) => {
          if (!element) return [255, 255, 255];
          const [r, g, b, a = 1] = numbers(getComputedStyle(element).backgroundColor);
          const below = a < 1 ? behind(element.parentElement) : [0, 0, 0];
          return [r, g, b].map((v, i) => v * a + below[i] * (1 - a));
        };
        const ratio = (one, other) => {
          const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
          return (high + 0.05) / (low + 0.05);
        };
        const seen = new Set(), failures = [];
        for (const element of document.body.querySelectorAll("*")) {
          const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
          if (!own || !element.checkVisibility() || element.closest("script, :disabled")) continue;
          const style = getComputedStyle(element), svg = element instanceof SVGElement;
          const contrast = ratio(numbers(svg ? style.fill : style.color), behind(element));
          if (contrast < 4.5 && !(svg && element.classList.contains("letter")))
            failures.push([element.tagName, String(element.className), contrast]);
          if (style.textDecorationLine === "underline" && element.matches(".ink, .badge")) {
            const line = ratio(numbers(style.textDecorationColor), behind(document.body));
            if (line < 3) failures.push(["underline", element.parentElement.className, line]);
          }
          seen.add(element.parentElement.className);
        }
        return seen.size > 20 ? failures : ["too little was looked at"];
        })()"""
    )
    assert failures == []


def test_motion_is_reduced_where_that_is_asked_for(browser: Browser, folder: Path) -> None:
    behaviours = []
    for motion in ("reduce", "no-preference"):
        browser.look(motion=motion)
        browser.open(folder / "one.html")
        behaviours.append(browser.value("getComputedStyle(document.documentElement).scrollBehavior"))
    assert behaviours == ["auto", "smooth"]


def test_a_thousand_prompts_open_in_seconds(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "thousand.html"
    path.write_text(render(pages.diagnosis(4, 1000), pages.texts(1000, 4)), encoding="utf-8")
    browser.look()
    assert browser.open(path) < 10
    assert browser.value("document.querySelectorAll('#tokens .tok').length") == 64
    assert browser.value("document.querySelectorAll('*').length") < 2500
    assert browser.value("document.querySelector('#range').textContent") == "1–8 of 1000"
    assert browser.complaints == []

"""The page of a diagnosis: what stands on it without a script."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import time
import weakref
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest

from counterpoint.diagnostics.report import render
from counterpoint.diagnostics.report.charts import Line, drift, line_chart, reached
from counterpoint.diagnostics.report.escape import embedded, visible, visible_token
from counterpoint.diagnostics.report.figures import letter, plain, share, signed
from counterpoint.diagnostics.report.texts import choose
from counterpoint.diagnostics.results import Diagnosis, Estimate, Text
from diagnostics import pages

VOID = {"meta", "input", "br", "path", "circle", "rect"}


class Page(HTMLParser):
    """The page as elements: text of a selection, tables as lists of cells. Fails where tags do not match."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[tuple[tuple[str, ...], str]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.ids: list[str] = []
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self._table = ""
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.attributes.append((tag, attributes))
        if attributes.get("id"):
            self.ids.append(str(attributes["id"]))
        if tag == "table":
            self._table = str(attributes.get("class"))
            self.tables[self._table] = []
        if tag == "tr":
            self.tables[self._table].append([])
        if tag in ("td", "th"):
            self.tables[self._table][-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((tuple(self.open), data))
        if {"td", "th"} & set(self.open):
            self.tables[self._table][-1][-1] += data

    def text(self, inside: str = "main") -> str:
        return "".join(data for where, data in self.texts if inside in where)


def data_of(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


@pytest.fixture(scope="module")
def html() -> str:
    return render(pages.diagnosis(), pages.texts())


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_the_sections_stand_in_their_order(html: str, page: Page) -> None:
    marks = ['id="verdict"', 'class="settings"', 'id="components"', 'id="interference"', 'id="along"', 'id="reading"']
    places = [html.index(mark) for mark in marks]
    assert places == sorted(places)
    assert len(page.ids) == len(set(page.ids))


@pytest.mark.parametrize(
    ("level", "word"), [("clear", "Clear"), ("caution", "Caution"), ("interference", "Interference")]
)
def test_the_verdict_is_in_words(level: str, word: str) -> None:
    diagnosis = pages.diagnosis(level=level)
    text = Page(render(diagnosis, [])).text()
    assert word in text
    assert diagnosis.verdict.headline in text
    for reason in diagnosis.verdict.reasons:
        assert reason.text in text
        assert f"threshold {reason.threshold:.2f}" in text
        assert f" {reason.value:.2f}threshold" in text
    assert ("No measure crossed its threshold" in text) == (not diagnosis.verdict.reasons)


def test_settings_name_rule_prompts_positions_continuations_and_version(page: Page) -> None:
    text = page.text()
    for fact in ("rule product", "24 texts", "1,536 positions", "composed, sampled, 64 tokens", "counterpoint 0.2.0"):
        assert fact in text
    assert "p(v) ∝ p_base(v) · (p_pirate(v) / p_base(v))" in text
    assert "sha256:9f2c" in text
    assert '"rule": "product"' in text  # the recipe, among all settings


def test_a_row_a_component(page: Page) -> None:
    head, first, second, third = page.tables["components"]
    assert head[1:] == [
        "Activity", "Active share", "Projectivity gap", "Bin distance", "Retained evidence", "Moved share"
    ]  # fmt: skip
    assert first[0] == "A pirate"
    assert first[1] == "0.68 0.60 to 0.77"
    assert first[2] == "62\u202f% 54\u202f% to 70\u202f%"
    assert second[3:6] == ["0.51 0.45 to 0.58", "0.078 0.064 to 0.091", "1.15 1.01 to 1.29"]
    assert second[6] == "30\u202f% 26\u202f% to 34\u202f%"
    assert third[5] == "undefined nowhere active"
    for name in head[1:]:
        assert f"<dt>{name}</dt>" in render(pages.diagnosis(), [])


def test_one_text_has_figures_without_intervals() -> None:
    one = pages.diagnosis(count=1)
    alone = Estimate(mean=0.5, low=None, high=None)
    one.by_component["pirate"].activity = alone
    assert Page(render(one, [])).tables["components"][1][1] == "0.50 no interval"


def test_the_matrix_has_each_pair_once_with_its_sign(page: Page) -> None:
    diagnosis = pages.diagnosis()
    head, first, second, third = page.tables["matrix"]
    assert head == ["", "A", "B"]
    assert first == ["A pirate"]
    assert second == ["B scientist", "+0.32+0.28 to +0.36", ""]
    assert third[1:] == ["+0.24+0.21 to +0.28", "−0.098−0.11 to −0.082"]
    assert diagnosis.pairs == [(0, 1), (0, 2), (1, 2)]


def test_a_cell_of_the_matrix_tells_its_sign_without_colour(html: str) -> None:
    assert re.search(r'<td class="plus\d" title="[^"]*">\+0\.32', html)
    assert re.search(r'<td class="minus\d" title="[^"]*">−0\.098', html)
    assert "repeating-linear-gradient" in re.search(r'\[class\^="minus"\] \{[^}]*\}', html)[0]  # type: ignore[index]


def test_sixteen_components_have_120_pairs() -> None:
    page = Page(render(pages.diagnosis(16), pages.texts(1, 16)))
    filled = [cell for row in page.tables["matrix small"][1:] for cell in row[1:] if cell]
    assert len(filled) == 120
    assert len(page.tables["pairs"]) == 121
    sizes = [abs(float(row[2].replace("−", "-"))) for row in page.tables["pairs"][1:]]
    assert sizes == sorted(sizes, reverse=True)
    assert len({letter(n) for n in range(800)}) == 800


def test_an_undefined_pair_is_said_to_be_so() -> None:
    diagnosis = pages.diagnosis()
    diagnosis.interference[1] = pages.NOTHING
    assert Page(render(diagnosis, [])).tables["matrix"][3][1] == "undef."


def test_a_chart_draws_the_line_where_its_values_are() -> None:
    values = [Estimate(mean=mean, low=None, high=None) for mean in (0.0, 1.0, None, 2.0, 1.0)]
    values[3] = Estimate(mean=2.0, low=1.0, high=2.0)
    values[4] = Estimate(mean=1.0, low=0.0, high=2.0)
    drawn = line_chart("t", "n", [Line(1, values)], [9, 9, 9, 5, 1])
    # 328 wide from 44, 140 high up to 10; 2 nats high
    assert '<path class="line" d="M44.0 150.0L126.0 80.0"/>' in drawn
    assert '<path class="line" d="M290.0 10.0L372.0 80.0"/>' in drawn
    assert '<path class="band" d="M290.0 10.0L372.0 10.0L372.0 150.0L290.0 80.0Z"/>' in drawn
    assert 'class="c1"' in drawn
    assert ">texts<" in drawn
    assert ">9<" in drawn
    assert "A:" not in drawn
    assert "B: from 0.000 at the first to 1.00 at the last position" in drawn


def test_a_thin_end_does_not_flatten_a_chart() -> None:
    steady = [Estimate(mean=0.5, low=0.4, high=0.6)] * 9
    wild = Estimate(mean=0.5, low=-40.0, high=40.0)
    drawn = line_chart("t", "", [Line(None, [*steady, wild])], [100] * 9 + [3])
    assert "0.6" in drawn
    assert "40" not in re.sub(r'd="[^"]*"|viewBox="[^"]*"', "", drawn)
    band = re.search(r'class="band" d="M([^"]*)Z"', drawn)
    assert band
    heights = [float(point.split(" ")[1]) for point in band[1].split("L")]
    assert (min(heights), max(heights)) == (10, 150)  # the edges of the plot


def test_drift_is_in_words() -> None:
    values = [Estimate(mean=mean, low=None, high=None) for mean in (1.0, 3.0, 9.0, 9.0, 9.0, 9.0, 5.0, None)]
    assert drift(values) == '<span class="drift">2.00 → 5.00</span>'
    assert reached(values) == "5.00 after 7 tokens"
    assert drift([pages.NOTHING] * 3) == reached([]) == "undefined"


def test_charts_are_drawn_of_all_four_measures(page: Page, html: str) -> None:
    assert html.count('<figure class="chart">') == 4
    for title in ("log Z at each position", "log Z summed up", "Projectivity gap, nats", "Activity, nats"):
        assert title in page.text("figcaption")
    assert html.count(">24<") == html.count(">15<") == 4  # the number of texts, first and last
    assert render(pages.diagnosis(16), []).count('<figure class="chart">') == 2 + 2 * 16


def test_the_data_are_the_texts_in_thousandths(html: str) -> None:
    data = data_of(html)
    assert data["components"] == ["pirate", "scientist", "haiku"]
    assert len(data["texts"]) == 24
    for record, text in zip(data["texts"], pages.texts(), strict=True):
        assert record["key"] == str(text.index)
        assert record["logP"] == [round(1000 * value) for value in text.log_probs if value is not None]
        assert record["logB"] == [round(1000 * value) for value in text.base_log_probs if value is not None]
        assert record["logZ"] == [round(1000 * value) for value in text.log_partition if value is not None]
        assert record["activity"] == [[round(1000 * (value or 0)) for value in row] for row in text.activity]
        assert record["moved"][1][5] == round(1000 * (text.moved[1][5] or 0))
        assert record["gap"] == [[None if v is None else round(1000 * v) for v in row] for row in text.gap]
        assert record["orphans"] == [n for n, orphan in enumerate(text.orphan) if orphan]
    assert data["texts"][1]["prompt"][0] == ["system", "You are a ship's scientist."]
    assert data["texts"][0]["prompt"] == [
        ["", "Question 0: explain the tides to the crew, briefly and in your own voice."]
    ]


def small(index: int, gaps: list[list[float | None]], **other: Any) -> Text:
    """Two components and a token for each gap."""
    length = len(gaps[0])
    flat: list[float | None] = [0.0] * length
    values: dict[str, Any] = {
        "index": index,
        "prompt": f"prompt {index}",
        "voice": "composed",
        "tokens": [f" w{n}" for n in range(length)],
        "log_probs": flat,
        "base_log_probs": flat,
        "moved": [flat, flat],
        "log_partition": [0.25 * n for n in range(length)],
        "activity": [flat, flat],
        "evidence": [flat, flat],
        "gap": gaps,
        "bin_distance": gaps,
        "interference": [flat],
        "orphan": [False] * length,
    }
    return Text(**{**values, **other})


def test_the_worst_positions_are_those_with_the_largest_mean_gap() -> None:
    texts = [
        small(0, [[0.1, 0.2, None], [0.1, 0.9, None]]),  # means 0.1, 0.55, undefined
        small(1, [[None, 0.3, 0.1], [0.6, 0.1, 0.1]]),  # means 0.6, 0.2, 0.1
    ]
    chosen = choose(texts)
    assert [(p.key, p.at) for p in chosen.worst] == [("1", 0), ("0", 1), ("1", 1), ("0", 0), ("1", 2)]
    assert chosen.worst[1].gap == pytest.approx(0.55)
    assert chosen.worst[1].log_partition == 0.25
    assert [json.loads(record)["worstAt"] for record in chosen.records] == [1, 0]
    assert [json.loads(record)["worstGap"] for record in chosen.records] == [550, 600]
    html = render(pages.diagnosis(2), texts)
    assert html.index('href="#text=1&amp;token=1"') < html.index('href="#text=0&amp;token=2"')
    worst = Page(html).text("ol")
    assert "… w0 w1 w2…" in worst
    assert "gap 0.55, log Z +0.25" in worst


def test_no_more_than_a_dozen_worst_positions() -> None:
    texts = [small(n, [[float(n)], [float(n)]]) for n in range(40)]
    assert [p.key for p in choose(texts).worst] == [str(n) for n in range(39, 27, -1)]


def test_a_full_budget_keeps_the_worst_texts_and_says_how_many_are_left_out() -> None:
    texts = [small(n, [[n / 10 if n % 2 else 0.01], [None]]) for n in range(20)]
    size = max(len(record) for record in choose(texts).records) + 1
    chosen = choose(iter(texts), budget=3 * size)
    assert [json.loads(record)["index"] for record in chosen.records] == [15, 17, 19]
    assert chosen.left_out == 17
    html = render(pages.diagnosis(2), texts, budget=3 * size)
    assert "17 of 20 texts are left out here" in Page(html).text()
    assert f"within {3 * size / 1e6:.3g} MB" in Page(html).text()
    assert "texts.jsonl" in Page(html).text()
    assert 'href="#text=19&amp;token=1"' in html
    assert 'href="#text=13&amp;token=1"' not in html
    assert "text 13, token 1" in html
    assert "left out" not in render(pages.diagnosis(2), texts)


def test_one_text_is_kept_whatever_its_size() -> None:
    assert len(choose([small(0, [[1.0], [1.0]])], budget=10).records) == 1


def test_a_prompt_with_several_texts_has_a_key_for_each() -> None:
    texts = [small(3, [[1.0], [1.0]], voice=voice) for voice in ("composed", "base", "pirate")]
    records = [json.loads(record) for record in choose(texts).records]
    assert [record["key"] for record in records] == ["3", "3.2", "3.3"]
    assert [record["voice"] for record in records] == [
        "written by the composed model", "written by the base", "written by pirate"
    ]  # fmt: skip


def test_texts_are_read_one_by_one() -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    most = 0

    class Counted(Text):
        __hash__ = object.__hash__

    def read() -> Iterator[Text]:
        nonlocal most
        for number in range(200):
            text = Counted(**small(number, [[1 / (1 + number)], [None]]).model_dump())
            alive.add(text)
            most = max(most, len(alive))
            yield text

    assert "left out" not in render(pages.diagnosis(2), read())
    assert most <= 15  # those with the worst positions, and the one in hand


@pytest.mark.parametrize("components", [1, 2])
def test_nothing_measured_is_said_to_be_undefined(components: int) -> None:
    page = Page(render(*pages.undefined(components)))
    text = page.text()
    assert all("undefined" in cell for row in page.tables["components"][1:] for cell in row[1:])
    assert "No positions were measured" in text
    assert "No projectivity gap is defined anywhere" in text
    assert ("this recipe has fewer" in text) == (components == 1)


def test_no_text_at_all() -> None:
    assert data_of(render(pages.undefined()[0], []))["texts"] == []


def test_what_has_no_end_is_still_on_the_page() -> None:
    endless = small(
        0, [[math.inf, math.nan], [1.0, None]], log_probs=[-math.inf, math.nan], log_partition=[math.inf, math.nan]
    )
    record = json.loads(choose([endless]).records[0])
    assert record["logP"] == ["−∞", None]
    assert record["worstGap"] == record["worstLogZ"] == "∞"
    diagnosis = pages.diagnosis(2)
    diagnosis.log_partition = Estimate(mean=math.inf, low=-math.inf, high=math.nan)
    diagnosis.interference = [diagnosis.log_partition]
    diagnosis.along.log_partition[3] = diagnosis.log_partition
    diagnosis.by_component["pirate"].gap = diagnosis.log_partition
    diagnosis.verdict.reasons[0].value = math.inf
    assert "nan" not in re.sub(r"<(style|script).*?</\1>", "", render(diagnosis, [endless]), flags=re.DOTALL)


def test_hostile_texts_do_not_leave_their_place() -> None:
    html = render(*pages.hostile())
    html.encode("utf-8")
    page = Page(html)
    assert html.lower().count("<script") == html.lower().count("</script") == 2
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200b\u200e\u200f\u202a-\u202e\ufeff\ud800-\udfff]", html
    )
    assert "<img" not in html
    assert all(not name.startswith("on") for _, attributes in page.attributes for name in attributes)
    assert all(name != "style" for _, attributes in page.attributes for name in attributes)
    text = page.text()
    for mark in ("<!--<script>", "␀␁␡", "⟨U+2028⟩", "⟨U+202E⟩", "⟨U+D800⟩", "${title}$style", "&lt;b&gt;"):
        assert mark in text
    tokens = data_of(html)["texts"][0]["tokens"]
    assert tokens[0] == "</script><script>alert(1)</script>"
    assert "שלום مرحبا" in tokens


def test_embedded_data_are_inert_in_markup() -> None:
    hard = ["".join(pages.HOSTILE), {"</script>": "\u2028\u2029<!-- & ]]>"}]
    written = embedded(hard)
    assert not re.search("[<>&\u2028\u2029\ud800-\udfff\x00]", written)
    assert json.loads(written) == hard


@pytest.mark.parametrize(
    ("token", "seen"),
    [
        (" the", " the"),
        ("\n", "↵\n"),
        (" a\n\n", " a↵\n↵\n"),
        ("\t", "⇥\t"),
        ("\r", "␍"),
        (" ", "␣"),
        ("   ", "␣␣␣"),
        ("\u3000", "␣"),
        ("", "∅"),
        ("\x00", "␀"),
        ("\u202e", "⟨U+202E⟩"),
        ("\ud83d", "⟨U+D83D⟩"),
        ("\u200d", "⟨U+200D⟩"),
        ("👩\u200d🚀", "👩\u200d🚀"),
        ("é", "é"),
    ],
)
def test_every_token_can_be_seen(token: str, seen: str) -> None:
    assert visible_token(token) == seen


def test_line_breaks_of_prompts_stay_line_breaks() -> None:
    assert visible("one\n\ttwo\x1b[0m") == "one\n\ttwo␛[0m"


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0.000"), (0.0421, "0.042"), (-0.0421, "−0.042"), (0.0996, "0.10"), (1.306, "1.31"), (9.996, "10.0"),
     (-12.44, "−12.4"), (99.96, "100"), (1204.4, "1,204"), (-0.0001, "0.000"), (-math.inf, "−∞"),
     (math.nan, "not a number")],
)  # fmt: skip
def test_figures_have_about_three_digits(value: float, words: str) -> None:
    assert plain(value) == words


def test_signs_and_shares() -> None:
    assert [signed(v) for v in (0.5, -0.5, 0.0, 0.0001)] == ["+0.50", "−0.50", "0.000", "0.000"]
    assert [share(v) for v in (0, 0.046, 0.27, 1)] == ["0\u202f%", "4.6\u202f%", "27\u202f%", "100\u202f%"]
    assert [letter(n) for n in (0, 15, 25, 26, 27, 52)] == ["A", "P", "Z", "AA", "AB", "BA"]


def test_the_policy_allows_this_style_and_script_and_nothing_else(html: str) -> None:
    policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', html)
    assert policy

    def digest(pattern: str) -> str:
        found = re.search(pattern, html, re.DOTALL)
        assert found
        return "'sha256-" + base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode() + "'"

    assert dict(part.split(" ", 1) for part in policy[1].split("; ")) == {
        "default-src": "'none'",
        "style-src": digest(r"<style>(.*?)</style>"),
        "script-src": digest(r"<script>(.*?)</script>"),
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert not re.search(r"""(?:src|href)=["'](?!#)|url\(|@import|https?://(?!www\.w3\.org/2000/svg)""", html)


def test_scripts_write_text_only(html: str) -> None:
    script = html[html.rindex("<script>") :]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|Function\(|DOMParser|srcdoc", script)


def test_the_same_diagnosis_gives_the_same_page(html: str) -> None:
    assert render(pages.diagnosis(), pages.texts()) == html


def test_a_thousand_prompts_are_small_and_quick() -> None:
    texts = list(pages.texts(1000, 4, 64))
    start = time.process_time()
    html = render(pages.diagnosis(4, 1000), texts)
    assert time.process_time() - start < 10
    assert len(html.encode()) < 8_000_000
    assert len(data_of(html)["texts"]) == 1000


def test_diagnoses_of_the_tests_are_valid() -> None:
    for diagnosis in (pages.diagnosis(), pages.diagnosis(16), pages.undefined()[0]):
        assert Diagnosis.model_validate_json(diagnosis.model_dump_json()) == diagnosis

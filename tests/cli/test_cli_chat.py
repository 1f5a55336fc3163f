"""Chatting through piped stdin: commands, mistakes, and what the model is given to read."""

from __future__ import annotations

import pytest
import torch

from counterpoint.cli import _decoding
from counterpoint.composition.model import ComposedModel

SHORT = ("--max-new-tokens", "5")


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, str]]]:
    """The conversations that the model is asked to go on with; its answers are `answer 1`, `answer 2`, ..."""
    conversations: list[list[dict[str, str]]] = []

    def stream(model: object, prompt: list, decoding: object, printer: _decoding.Printer) -> None:
        conversations.append(list(prompt))
        printer.on_finalized_text(f"answer {len(conversations)}", stream_end=True)

    monkeypatch.setattr(_decoding, "stream", stream)
    return conversations


def test_an_answer_is_that_of_generate(run) -> None:
    generated = run("generate", "recipe.yaml", "hi", *SHORT, "--json").stdout
    chatted = run("chat", "recipe.yaml", *SHORT, stdin="hi\n")
    assert (chatted.exit_code, chatted.stderr) == (0, "")
    assert f'"text": "{chatted.stdout.removesuffix(chr(10))}"' in generated


def test_turns_are_remembered_until_reset(run, heard) -> None:
    result = run("chat", "recipe.yaml", stdin="one\n\ntwo\n/reset\nthree\n/quit\nfour\n")
    assert result.stdout == "answer 1\nanswer 2\nthe conversation is forgotten\nanswer 3\n"
    assert [[m["content"] for m in conversation] for conversation in heard] == [
        ["one"],
        ["one", "answer 1", "two"],
        ["three"],
    ]
    assert [m["role"] for m in heard[1]] == ["user", "assistant", "user"]


def test_commands_change_the_model_and_say_what_it_is_now(run) -> None:
    result = run("chat", "recipe.yaml", stdin="/weight pirate 0\n/weight\n/rule mixture\n/solo pirate\n/solo\n")
    ratio = "p(v) ∝ p_base(v) · (p_math(v) / p_base(v))^0.5"
    assert result.stdout.splitlines() == [
        ratio,
        ratio,
        "p(v) = (0.5·p_math(v)) / 0.5",
        "only pirate is heard; /solo alone brings all back",
        "all voices are heard",
    ]
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_changed_weight_changes_the_answer(run) -> None:
    first, second = run("chat", "recipe.yaml", *SHORT, stdin="hi\n/reset\n/weight math 5\nhi\n").stdout.splitlines()[
        ::3
    ]
    assert first != second


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/wait", "no command is called /wait; did you mean '/weight'?; /help lists them"),
        ("/weight pirat 1", "no component is called 'pirat'; did you mean 'pirate'?"),
        ("/weight pirate", "'pirate' is not a number; write it as in /weight pirate 0.5"),
        ("/weight 0.5", "no component is named; write it as in /weight pirate 0.5"),
        ("/weight pirate nan", "components.pirate.weight: nan"),
        ("/rule produkt", "unknown rule 'produkt'; did you mean 'product'?"),
        ("/rule", "unknown rule ''"),
        ("/solo priate", "no voice is called 'priate'; did you mean 'pirate'?"),
    ],
)
def test_a_mistake_is_a_line_and_the_chat_goes_on(run, heard, line: str, message: str) -> None:
    result = run("chat", "recipe.yaml", stdin=f"{line}\nhi\n")
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1
    assert (result.exit_code, result.stdout) == (0, "answer 1\n")


def test_a_turn_that_cannot_be_answered_is_not_remembered(run) -> None:
    result = run("chat", "recipe.yaml", *SHORT, stdin=f"{'long ' * 60}\nhi\n")
    assert "the model's window is 256" in result.stderr
    assert (result.exit_code, result.stdout.count("\n")) == (0, 1)


def test_help_lists_every_command(run) -> None:
    listed = run("chat", "recipe.yaml", stdin="/help\n").stdout
    assert [line.split()[0] for line in listed.splitlines()] == [
        "/weight",
        "/rule",
        "/solo",
        "/reset",
        "/help",
        "/quit",
    ]


def test_ctrl_c_stops_the_answer_and_keeps_the_chat(run, monkeypatch) -> None:
    asked: list[str] = []
    generate = ComposedModel.generate

    def interrupted(self: ComposedModel, streamer: _decoding.Printer, **arguments: object) -> None:
        assert self.tokenizer is not None
        asked.append(self.tokenizer.decode(arguments["input_ids"][0]))  # type: ignore[index]
        if len(asked) > 1:
            generate(self, streamer=streamer, **arguments)
            return
        streamer.put(arguments["input_ids"].cpu())  # type: ignore[attr-defined]
        for token in self.tokenizer("so far")["input_ids"]:
            streamer.put(torch.tensor([token]))
        raise KeyboardInterrupt

    monkeypatch.setattr(ComposedModel, "generate", interrupted)
    result = run("chat", "recipe.yaml", *SHORT, stdin="hi\nmore\n")
    assert result.stdout.startswith("so far\n(stopped)\n")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "assistant so far" in asked[1]


def test_ctrl_c_before_the_first_word_takes_the_question_back(run, heard, monkeypatch) -> None:
    stream = _decoding.stream

    def interrupted(model: object, prompt: list, *rest: object) -> None:
        if prompt[-1]["content"] == "one":
            raise KeyboardInterrupt
        stream(model, prompt, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(_decoding, "stream", interrupted)
    assert run("chat", "recipe.yaml", stdin="one\ntwo\n").stdout == "\n(stopped)\nanswer 1\n"
    assert [m["content"] for m in heard[0]] == ["two"]


def test_a_model_without_a_chat_template_does_not_chat(run, here, tmp_path) -> None:
    result = run("chat", "--base", here / "plain", "--context", "a=Be kind.", stdin="hi\n")
    advice = "use `counterpoint generate` with plain text\n"
    assert result.stderr == f"error: a chat needs a chat template, and the tokenizer has none; {advice}"
    assert result.exit_code == 1
    (tmp_path / "raw.yaml").write_text(f"base: {here}/base\ncomponents: {{a: {{context: x}}}}\ncontext_format: raw\n")
    result = run("chat", "raw.yaml", stdin="hi\n")
    assert result.stderr == f"error: a chat needs a chat template, and this recipe's context_format is raw; {advice}"

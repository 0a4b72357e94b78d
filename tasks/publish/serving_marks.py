"""An answer for the terminal: accepted tokens of each round in the round's colour, or between marks."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.publish.serving_ask import Answer

COLOURS = (36, 33, 35, 32, 34, 31)
"""Terminal colours of successive rounds, in turn; no two neighbours look alike."""
_BRACKETS = (("⟨", "⟩"), ("<<", ">>"))
_KEY = {
    True: "coloured: accepted draft tokens, a colour for each round; plain: the target's own tokens",
    False: "{0}...{1}: the accepted draft tokens of one round; outside: the target's own tokens",
}


def coloured(environment: Mapping[str, str], is_terminal: bool) -> bool:
    """Whether colours are wanted: a terminal that is not dumb, and no `NO_COLOR` (no-color.org)."""
    return is_terminal and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def shown(answer: Answer, *, colours: bool, encoding: str = "utf-8") -> str:
    """The answer, then what is known about its rounds.

    Args:
        encoding: Of the terminal or file, for marks that it can write.
    """
    left, right = _brackets(encoding)
    lines = [_marked(answer, colours, left, right), "", *_figures(answer)]
    if answer.rounds.rounds and answer.pieces:
        lines.append(_KEY[colours].format(left, right))
    return "\n".join(lines)


def _marked(answer: Answer, colours: bool, left: str, right: str) -> str:
    if not answer.rounds.rounds or not answer.pieces:
        return answer.text
    text, behind = answer.pieces[0], 1
    for number, one in enumerate(answer.rounds.rounds):
        drafted = "".join(answer.pieces[one.first : one.first + one.accepted])
        if drafted:
            text += _in_colour(drafted, COLOURS[number % len(COLOURS)]) if colours else left + drafted + right
        behind = one.first + one.tokens
        text += "".join(answer.pieces[one.first + one.accepted : behind])
    return text + "".join(answer.pieces[behind:])


def _in_colour(text: str, colour: int) -> str:
    """Coloured line by line: pagers and terminals lose a colour that crosses a line's end."""
    return "\n".join(f"\033[{colour}m{line}\033[0m" if line else line for line in text.split("\n"))


def _figures(answer: Answer) -> list[str]:
    rounds, counted = answer.rounds, answer.rounds.counted
    told = f"{len(answer.streamed.tokens)} tokens in {answer.seconds:.1f} s"
    if counted.drafts and not counted.invalid:
        told += (
            f"; {counted.drafts} rounds, {counted.accepted} of {counted.draft_tokens} draft tokens accepted, "
            f"tau {rounds.tau:.2f} tokens per round"
        )
    lines = [told]
    if rounds.doubt:
        lines.append(f"accepted tokens are not shown: {rounds.doubt}")
    elif not answer.pieces:
        lines.append("accepted tokens are not shown: the server has no /detokenize")
    else:
        lines.append(f"agreed: {rounds.agreed}")
    return lines


def _brackets(encoding: str) -> tuple[str, str]:
    try:
        "".join(_BRACKETS[0]).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return _BRACKETS[1]
    return _BRACKETS[0]

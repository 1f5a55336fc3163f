"""Figures in words."""


def size(count: float | None) -> str:
    """Bytes as a reader says them: 538 MB; `unknown` for None."""
    if count is None:
        return "unknown"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def number(count: int | None) -> str:
    """A count of parameters as a reader says it: 135 M; `unknown` for None."""
    if count is None:
        return "unknown"
    if count < 1_000_000:
        return f"{count:,}"
    return f"{count / 1e9:.3g} B" if count >= 999_500_000 else f"{count / 1e6:.3g} M"

"""Rows of tokens: one text or two, with the special tokens around and between them."""

from __future__ import annotations

from typing import NamedTuple

from clusterformer.errors import InputError


class Frame(NamedTuple):
    """Special tokens around the one text of a row, or around and between its two.

    Attributes:
        before: Tokens before the first text.
        between: Tokens between two texts.
        after: Tokens behind the last text.
        second: Number of tokens of `between` before the second segment; None if there is none.
    """

    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    second: int | None = None

    @property
    def size(self) -> int:
        """Number of special tokens of a row."""
        return len(self.before) + len(self.between) + len(self.after)

    def around(self, *texts: list[int]) -> list[int]:
        """Return the row of one text, or of two."""
        row = [*self.before, *texts[0]]
        for text in texts[1:]:
            row += [*self.between, *text]
        return [*row, *self.after]

    def second_start(self, first: list[int], row: list[int]) -> int:
        """Return the position in `row` at which the second segment begins; its end if none does."""
        if self.second is None:
            return len(row)
        return len(self.before) + len(first) + self.second

    def cut(self, texts: list[list[int]], limit: int | None) -> list[list[int]]:
        """Cut the one text of a row, or the longer one of its two, as transformers does.

        Args:
            texts: One text or two.
            limit: Maximum number of tokens of the row; None for no limit.

        Raises:
            InputError: if the limit leaves no token for a text.
        """
        if limit is None:
            return texts
        room = limit - self.size
        if room < len(texts):
            raise InputError(
                f"max_length must be at least {self.size + len(texts)}: the pretrained model puts "
                f"{self.size} tokens around the text, got {limit}"
            )
        if len(texts) == 1:
            return [texts[0][:room]]
        first, second = texts
        if len(first) + len(second) <= room:
            return texts
        shorter = min(len(first), len(second), room // 2)
        longer = room - shorter
        sizes = (shorter, longer) if len(first) <= len(second) else (longer, shorter)
        return [first[: sizes[0]], second[: sizes[1]]]

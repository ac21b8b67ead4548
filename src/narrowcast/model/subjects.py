"""Subjects of NATS: what may be one, and how any name becomes a word of one."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import quote, unquote

from narrowcast.errors import ParameterError

#: Bytes in the longest subject that is sent: a server's whole line has 4,096, with the place for the answer.
LONGEST = 2048

_BAD = re.compile(r"[\s\0-\x1f\x7f]")
#: Subjects that are remembered: a broker sends to the same again and again.
_KEPT = 1 << 17
#: How an empty name is written: an escape that is not finished, so no other name is.
_EMPTY = "%"


@lru_cache(_KEPT)
def fault_of(subject: str | None, *, pattern: bool = False) -> str | None:
    """Return why NATS would not take a subject, or None when it would.

    Parameters
    ----------
    subject
        Words joined by dots.
    pattern
        Whether `*` may stand for a word, and `>` for the last words.

    Examples
    --------
    >>> fault_of("to.anna"), fault_of("to..anna"), fault_of("to.*"), fault_of("to.*", pattern=True)
    (None, 'subject has an empty word', 'subject has a wildcard', None)
    """
    if not subject:
        return "subject is empty"
    words = subject.split(".")
    if not all(words):
        return "subject has an empty word"
    if _BAD.search(subject):
        return "subject has white space"
    if not pattern and {"*", ">"} & set(words):
        return "subject has a wildcard"
    if ">" in words[:-1]:
        return "subject has '>' before its end"
    # A lone half of a character cannot be sent; it counts as one byte until the check below finds it.
    size = len(subject.encode(errors="replace"))
    if size > LONGEST:
        return f"subject has {size:,} bytes, more than {LONGEST:,}"
    try:
        subject.encode()
    except UnicodeEncodeError:
        return "subject is no valid text"
    return None


@lru_cache(_KEPT)
def subject_of(prefix: str, name: str) -> str:
    """Return the subject below a prefix that stands for a name, whatever the name holds.

    The name becomes one word, escaped as in URLs: letters, digits, `-`, `_` and `~` stay, every other
    character is its UTF-8 bytes as `%XX`. An empty name is a single `%`. `name_of` is the way back.

    Parameters
    ----------
    prefix
        The words in front: a valid subject without wildcards.
    name
        Such as a subscriber.

    Raises
    ------
    ParameterError
        When the prefix is no subject.

    Examples
    --------
    >>> subject_of("deliver", "anna"), subject_of("deliver", "a.b *"), subject_of("deliver", "")
    ('deliver.anna', 'deliver.a%2Eb%20%2A', 'deliver.%')
    """
    if fault := fault_of(prefix):
        raise ParameterError(f"prefix {prefix!r} cannot be used: {fault}; use words joined by single dots")
    word = quote(name, safe="", errors="surrogatepass").replace(".", "%2E")
    return f"{prefix}.{word or _EMPTY}"


def name_of(prefix: str, subject: str) -> str:
    """Return the name that a subject from `subject_of` stands for.

    Raises
    ------
    ParameterError
        When the subject is not one word below the prefix.

    Examples
    --------
    >>> name_of("deliver", "deliver.a%2Eb%20%2A")
    'a.b *'
    """
    word = subject.removeprefix(f"{prefix}.")
    if not subject.startswith(f"{prefix}.") or not word or "." in word:
        raise ParameterError(f"subject {subject!r} is not one word below {prefix!r}; name its own prefix")
    return "" if word == _EMPTY else unquote(word, errors="surrogatepass")

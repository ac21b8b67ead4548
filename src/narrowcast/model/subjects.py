"""NATS subjects: validation, and escaping of names into one token of a subject."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import quote, unquote

from narrowcast.errors import ParameterError

#: Longest subject in bytes: a server limits its protocol line to 4,096, which includes the reply subject.
LONGEST = 2048

_BAD = re.compile(r"[\s\0-\x1f\x7f]")
#: Number of cached subjects: a broker sends to the same subjects repeatedly.
_CACHED = 1 << 17
#: The escape of an empty name: an incomplete escape, so it cannot be the escape of another name.
_EMPTY = "%"


@lru_cache(_CACHED)
def fault_of(subject: str | None, *, pattern: bool = False) -> str | None:
    """Return why NATS would refuse a subject, or None if it is valid.

    Parameters
    ----------
    subject
        Tokens joined by dots.
    pattern
        Whether `*` may replace a token, and `>` the last tokens.

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
    # A lone surrogate cannot be sent; it counts as one byte here and is refused below.
    size = len(subject.encode(errors="replace"))
    if size > LONGEST:
        return f"subject has {size:,} bytes, more than {LONGEST:,}"
    try:
        subject.encode()
    except UnicodeEncodeError:
        return "subject is not valid Unicode"
    return None


@lru_cache(_CACHED)
def subject_of(prefix: str, name: str) -> str:
    """Return the subject for a name below a prefix; any name is possible.

    The name becomes one token, escaped as in URLs: letters, digits, `-`, `_` and `~` stay, every other
    character becomes its UTF-8 bytes as `%XX`. An empty name is a single `%`. `name_of` is the inverse.

    Parameters
    ----------
    prefix
        Leading tokens: a valid subject without wildcards.
    name
        Any string, for example a subscriber.

    Raises
    ------
    ParameterError
        When the prefix is not a valid subject.

    Examples
    --------
    >>> subject_of("deliver", "anna"), subject_of("deliver", "a.b *"), subject_of("deliver", "")
    ('deliver.anna', 'deliver.a%2Eb%20%2A', 'deliver.%')
    """
    if fault := fault_of(prefix):
        raise ParameterError(
            f"prefix={prefix!r}: {fault}: must be tokens joined by single dots",
            parameter="prefix",
            value=prefix,
        )
    word = quote(name, safe="", errors="surrogatepass").replace(".", "%2E")
    return f"{prefix}.{word or _EMPTY}"


def name_of(prefix: str, subject: str) -> str:
    """Return the name that `subject_of` turned into the subject.

    Raises
    ------
    ParameterError
        When the subject is not the prefix and one more token.

    Examples
    --------
    >>> name_of("deliver", "deliver.a%2Eb%20%2A")
    'a.b *'
    """
    word = subject.removeprefix(f"{prefix}.")
    if not subject.startswith(f"{prefix}.") or not word or "." in word:
        raise ParameterError(
            f"subject={subject!r}: must be {prefix!r} and one more token", parameter="subject", value=subject
        )
    return "" if word == _EMPTY else unquote(word, errors="surrogatepass")

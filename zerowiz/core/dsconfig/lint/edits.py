"""Make the edits that change one member of a config."""

import json
import re

from zerowiz.core.dsconfig.hjson_tokens import Span
from zerowiz.core.dsconfig.lint.config import Entry
from zerowiz.core.dsconfig.lint.finding import Edit

# What may be removed together with a member: a comment may not.
_GAP = re.compile(r"[\s,]*")


def rename(entry: Entry, name: str) -> tuple[Edit, ...]:
    """Give the key another name, in the quotes that it has."""
    key = entry.member.key
    return (_over(key.place, f"{key.quote}{name}{key.quote}"),)


def put(entry: Entry, value: object) -> tuple[Edit, ...]:
    """Give the key another value."""
    return (_over(entry.member.value.place, json.dumps(value)),)


def drop(text: str, entry: Entry) -> tuple[Edit, ...]:
    """Remove the member, unless something other than a comma stands between it and the next."""
    members = entry.holder.members
    at = members.index(entry.member)
    start, end = entry.member.key.place.start, entry.member.value.place.end
    if at + 1 < len(members):
        gap, end = text[end : members[at + 1].key.place.start], members[at + 1].key.place.start
    elif at:
        gap, start = text[members[at - 1].value.place.end : start], members[at - 1].value.place.end
    else:
        return ()
    return (Edit(start=start, end=end, text=""),) if _GAP.fullmatch(gap) else ()


def _over(place: Span, text: str) -> Edit:
    return Edit(start=place.start, end=place.end, text=text)

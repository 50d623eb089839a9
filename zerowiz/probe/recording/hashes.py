"""Replace identifiers of a machine by hashes; equal identifiers get equal hashes."""

import hashlib
import re
import uuid

from zerowiz.words import edited

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)

# systemd.net-naming-scheme(7) and rdma-core's rdma_rename(8): adapters that are named after their
# MAC address or GUID, `enx...`, `ibx...`, `rocex...`.
_ADDRESS_NAME = re.compile(r"\b([a-z]+)x([0-9a-f]{12,40})\b")


def hash_uuids(text: str) -> str:
    """The text with every UUID replaced by a UUID made of its hash."""
    return edited(text, lambda words: _UUID.sub(lambda match: _hash_uuid(match[0]), words))


def hash_addresses(text: str) -> str:
    """The text with the address in a network adapter's name replaced by its hash."""
    return _ADDRESS_NAME.sub(lambda m: f"{m[1]}x{hash_bytes(m[2].encode()).hex()[:12]}", text)


def _hash_uuid(text: str) -> str:
    return str(uuid.UUID(bytes=hash_bytes(text.lower().encode())))


def hash_bytes(content: bytes) -> bytes:
    """The first 16 bytes of the SHA-256, as many as a UUID has."""
    return hashlib.sha256(content).digest()[:16]

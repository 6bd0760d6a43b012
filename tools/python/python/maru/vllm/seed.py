"""An unset or differing PYTHONHASHSEED is an error at start.

vLLM begins its chain of block hashes with a value made from PYTHONHASHSEED (and from a default that has changed between
its versions where that is unset). Engines with different seeds look for different blocks: nothing breaks, and nothing
ever hits. So the seed must be set, and the first engine of a cache namespace leaves a *seed card* in the region: a
small block under an id that does not depend on the seed, which says what its finder must have. A card that was evicted
is written anew by whoever beats next.
"""

import hashlib
import json
import os

CARD = hashlib.sha256(b"maru seed card 1").digest()


class SeedError(ValueError):
    """Engines that shall share have different beginnings of their hashes."""


def from_environment(environ=os.environ):
    seed = environ.get("PYTHONHASHSEED")
    if not seed or not seed.isdecimal():
        found = "unset" if seed is None else repr(seed)
        raise SeedError(
            f"PYTHONHASHSEED: found {found}, wanted a number, the same on every engine that shares a region "
            "(PYTHONHASHSEED=0): vLLM's block hashes begin with it, so engines with different ones would never hit"
        )
    return seed


def card_fields(fields):
    """The namespace of the card: the engine's own, whatever its hashes are."""
    return {**fields, "hash_algorithm": "any", "hash_seed": "any", "storage_format": "maru-vllm-seed-card-1"}


def card_bytes(fields):
    text = json.dumps({"hash_algorithm": fields["hash_algorithm"], "hash_seed": fields["hash_seed"]}, sort_keys=True)
    return text.encode().ljust(128)


def check_card(found, fields):
    """Compares a card that was found with what this engine has."""
    try:
        card = json.loads(bytes(found))
        theirs = {key: str(card[key]) for key in ("hash_algorithm", "hash_seed")}
    except (ValueError, KeyError, TypeError):
        return  # not a card that this version can read: nothing is known
    for key, flag in (("hash_seed", "PYTHONHASHSEED"), ("hash_algorithm", "--prefix-caching-hash-algo")):
        if theirs[key] != fields[key]:
            raise SeedError(
                f"{flag}: found {fields[key]!r} here, wanted {theirs[key]!r} as the engines have that already use the "
                f"cache namespace {fields['revision']!r}; with two values nothing would ever hit. Start this engine "
                "with theirs, or give it a maru_cache_namespace of its own"
            )


def leave_card(pools, fields):
    """Leaves the card in each pool that has room, or compares with the one that is there."""
    import maru

    mine = card_bytes(fields)

    def ask(live):
        card = maru.ObjectId(live.session.namespace(card_fields(fields)), CARD, 0, 0)
        if live.session.store_from([card], [mine])[0] != "present":
            return None
        found = bytearray(len(mine))
        return found if live.session.load_into([card], [found]) == [None] else None

    for pool in pools.all:
        found = pool.call(ask, None)
        if found is not None:
            check_card(found, fields)

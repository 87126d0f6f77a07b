"""tests/vectors.json is what docs/spec.md says, computed again by the reference and by the serving code."""

import make_vectors
import pytest
import vectors
from blake3 import blake3

from gpukey import reference as ref
from gpukey.fields import encode_fields, plain
from gpukey.keys import EmbeddingSpan, MultimodalItem, Root, block_keys, item_id
from gpukey.secret import Secret, domain, keyed_hash

ATTENTION = ("causal", "bidirectional")


@pytest.fixture(scope="module")
def golden():
    return vectors.load()


@pytest.fixture(scope="module")
def secret(golden):
    return Secret(bytes.fromhex(golden["secret"]))


def test_the_file_is_what_the_reference_makes():
    """TRT-LLM#18156: nothing drifts. A changed old vector means a new scheme, and new contexts."""
    assert vectors.PATH.read_text(encoding="utf-8") == make_vectors.spell(make_vectors.make())


def test_every_definition_has_vectors(golden):
    lists = {name: value for name, value in golden.items() if isinstance(value, list)}
    assert set(lists) == {
        *("blake3", "secrets", "rows", "spans", "placed", "items", "fields", "roots", "blocks", "prompts", "envelopes")
    }
    assert all(lists.values())
    kinds = {bytes.fromhex(overlay)[0] for block in golden["blocks"] for overlay in block["overlays"]}
    assert kinds == {1, 2, 3, 4}
    for name in ("rows", "spans", "placed", "items", "blocks", "envelopes"):
        assert {vector["digest_size"] for vector in golden[name]} == {16, 32}


def test_blake3(golden):
    for vector in golden["blake3"]:
        data = vectors.pattern(vector["length"])
        assert blake3(data).hexdigest() == vector["hash"]
        assert blake3(data, key=vectors.KEY).hexdigest() == vector["keyed_hash"]
        assert blake3(data, derive_key_context=ref.CONTEXT + "test vectors").hexdigest() == vector["derive_key"]


def test_secrets(golden):
    for vector in golden["secrets"]:
        secret = Secret(bytes.fromhex(vector["secret"]))
        assert secret.key_id == vector["key_id"]
        assert secret == Secret(bytes.fromhex(vector["secret"]))


def test_rows(golden, secret):
    for vector in golden["rows"]:
        where = vector["dtype"], vector["hidden"], vector["digest_size"]
        assert domain(*where).hex() == vector["domain"]
        key = secret.host_key("row", *where)
        assert key.hex() == vector["row_key"]
        assert keyed_hash(key, vectors.data(vector["row"]), vector["digest_size"]).hex() == vector["fingerprint"]


def test_spans(golden, secret):
    for vector in golden["spans"]:
        key = secret.host_key("span", vector["dtype"], vector["hidden"], vector["digest_size"])
        assert key.hex() == vector["span_key"]
        rows = vectors.data(vector["fingerprints"])
        assert len(rows) == vector["num_rows"] * vector["digest_size"]
        assert keyed_hash(key, rows, vector["digest_size"]).hex() == vector["span"]


def test_placed_spans(golden, secret):
    for vector in golden["placed"]:
        span = EmbeddingSpan(
            0,
            vectors.rows(vector["fingerprints"], vector["digest_size"]),
            attention=ATTENTION[vector["attention"]],
            layout=bytes.fromhex(vector["layout"]),
        )
        assert span.placed(secret).hex() == vector["placed"]


def test_items(golden, secret):
    for vector in golden["items"]:
        fields = vectors.fields(vector["fields"])
        span = bytes.fromhex(vector["span"])
        found = item_id(span, vector["modality"], secret=secret, digest_size=vector["digest_size"], **fields)
        assert found.hex() == vector["item_id"]


def test_fields(golden):
    for vector in golden["fields"]:
        fields = {name: plain(name, value) for name, value in vectors.fields(vector["fields"]).items()}
        assert encode_fields(fields).hex() == vector["encoded"]
    assert len({vector["encoded"] for vector in golden["fields"]}) == len(golden["fields"])


def test_roots(golden, secret):
    for vector in golden["roots"]:
        fields = vectors.fields(vector["fields"])
        block_size = fields.pop("block_size", None)
        assert Root(**fields).key(secret, block_size=block_size).hex() == vector["key"]
    assert len({vector["key"] for vector in golden["roots"]}) == len(golden["roots"])


def test_blocks(golden):
    """The serving code has no block on its own: the message is put together here, from the encodings that the file
    gives."""
    master = bytes.fromhex(golden["secrets"][0]["master"])
    for vector in golden["blocks"]:
        key = blake3(master + bytes([vector["digest_size"]]), derive_key_context=ref.CONTEXT + "block").digest()
        ids = b"".join(token_id.to_bytes(8, "little") for token_id in vector["token_ids"])
        overlays = sorted(
            map(bytes.fromhex, vector["overlays"]),
            key=lambda o: (int.from_bytes(o[1:5], "little"), o[0], int.from_bytes(o[5:9], "little"), o[9:]),
        )
        message = bytes.fromhex(vector["parent"]) + len(vector["token_ids"]).to_bytes(4, "little") + ids
        assert blake3(message + b"".join(overlays), key=key).hexdigest() == vector["key"]


def test_prompts(golden, secret):
    for vector in golden["prompts"]:
        size = vector["digest_size"]
        keys = block_keys(
            vector["token_ids"],
            block_size=vector["block_size"],
            root=Root(**vectors.fields(vector["root"])),
            secret=secret,
            digest_size=size,
            embeds=[
                EmbeddingSpan(
                    embed["start"],
                    vectors.rows(embed["fingerprints"], size),
                    attention=ATTENTION[embed["attention"]],
                    layout=bytes.fromhex(embed["layout"]),
                )
                for embed in vector["embeds"]
            ],
            items=[_item(item) for item in vector["items"]],
        )
        assert [key.hex() for key in keys] == vector["keys"], vector["name"]


def _item(item):
    raw, layout = bytes.fromhex(item["identifier"]), bytes.fromhex(item["layout"])
    identifier = raw.decode() if item["named"] else raw
    return MultimodalItem(
        item["start"], item["length"], item["modality"], identifier, named=item["named"], layout=layout
    )


def test_envelopes(golden, secret):
    for vector in golden["envelopes"]:
        blob = bytes.fromhex(vector["envelope"])
        body, mac = blob[:-16], blob[-16:]
        assert keyed_hash(secret.derive("envelope"), body, 16) == mac
        rows = vectors.data(vector["fingerprints"])
        head = b"gpukey1\0" + bytes.fromhex(secret.key_id)
        head += domain(vector["dtype"], vector["hidden"], vector["digest_size"])
        assert body == head + (len(rows) // vector["digest_size"]).to_bytes(8, "little") + rows

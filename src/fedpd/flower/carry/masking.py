"""The client's side of secure aggregation: SecAgg+ around the training, so that the server sees only sums.

Flower's own mod does the stages of the keys and shares. The stage of the masked vectors is done here, with sound masks
(`masks`) and three rules. The client masks x_{0,i}^+ - x_0, not x_{0,i}^+, because fixed-point numbers need a range. It
refuses an entry outside this range: a message that was cut silently does not fit the dual that the client keeps. It
does not carry out an order without masks.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.client.mod.secure_aggregation.secaggplus_mod import SecAggPlusState, check_configs, check_stage
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common import ndarray_to_bytes
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, generate_shared_key
from flwr.common.secure_aggregation.quantization import quantize
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, RECORD_KEY_STATE, Key, Stage
from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_separate
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key

from fedpd.flower.carry.masks import MODULUS, mask
from fedpd.flower.carry.protocol import read_order, read_reply, reply_content, reply_without_work
from fedpd.flower.carry.records import RefusedError, arrays_of


def asks_for_masks(message: Message) -> bool:
    """Return whether a message belongs to a stage of secure aggregation."""
    return RECORD_KEY_CONFIGS in message.content.config_records


def masked_clients(context: Context) -> int:
    """Return the least number of clients in a sum, as the setup stage has set it; 0 before that stage."""
    state: Any = context.state.config_records.get(RECORD_KEY_STATE, {})
    number = state.get("sample_num", 0)
    return number if isinstance(number, int) else 0


def masking_mod(name: Callable[[Context], str]) -> Mod:
    """Return the mod of clients that send only masked messages.

    Args:
        name: Returns the name of a client.
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not asks_for_masks(message):
            if not read_order(message.content).sends:
                return _without_arrays(call_next(message, context))
            note = "this client sends only masked messages. Set secure-range in the run's configuration."
            reply = reply_without_work(read_order(message.content), name(context), "refused", note)
            return Message(reply_content(reply), reply_to=message)
        if message.content.config_records[RECORD_KEY_CONFIGS].get(Key.STAGE) == Stage.COLLECT_MASKED_VECTORS:
            return _masked_reply(message, context, call_next)
        if message.content.config_records[RECORD_KEY_CONFIGS].get(Key.STAGE) == Stage.UNMASK:
            _check_lists(message, context)
        return secaggplus_mod(message, context, call_next)

    return mod


def _check_lists(message: Message, context: Context) -> None:
    """Refuse to reveal both secrets of a client, or a sum of fewer clients than the setup stage has promised."""
    stage: Any = message.content.config_records[RECORD_KEY_CONFIGS]
    active, dead = (set(stage.get(name, [])) for name in (Key.ACTIVE_NODE_ID_LIST, Key.DEAD_NODE_ID_LIST))
    least = masked_clients(context)
    if active & dead or len(active) < least:
        raise ValueError(f"The server asks for the sum of {len(active)} clients; {least} or more must be in it, once.")


def _without_arrays(reply: Message) -> Message:
    """Return the reply to an order that asks for no message, after a check that it has none."""
    if reply.has_content() and reply.content.array_records:
        raise RefusedError("this client sends only masked messages, but its reply has arrays without masks.")
    return reply


def _masked_reply(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Return the client's reply to an order, with masked vectors in place of its message: the weight 1, then a vector
    per array of the message."""
    state = SecAggPlusState(**context.state.config_records.get(RECORD_KEY_STATE, ConfigRecord()))
    stage: Any = message.content.config_records[RECORD_KEY_CONFIGS]
    check_stage(state.current_stage, stage)
    check_configs(Stage.COLLECT_MASKED_VECTORS, stage)
    reply = call_next(message, context)
    if reply.has_error() or (said := read_reply(reply.content)).status != "done":
        return reply
    sent, received = arrays_of(reply.content, "arrays", "reply"), arrays_of(message.content, "arrays", "order")
    change, bound = _difference(sent, received), _checked_range(state)
    largest = max((float(np.abs(array).max(initial=0)) for array in change), default=0.0)
    if largest > bound:
        enough = 2.0 ** np.ceil(np.log2(largest))
        note = f"an entry of its change exceeds secure-range = {bound:g} and would be clipped. Try {enough:g} or more."
        return Message(reply_content(said._replace(status="refused", note=note)), reply_to=message)
    senders = _keep_shares(state, stage)
    one = np.array([state.target_range], np.int64)  # all agents have the same weight
    masked = _masked(state, senders, [one, *quantize(change, bound, state.target_range)])
    state.current_stage = Stage.COLLECT_MASKED_VECTORS
    context.state.config_records[RECORD_KEY_STATE] = ConfigRecord(state.to_dict())
    content = RecordDict({"config": reply.content["config"], "metrics": reply.content["metrics"]})
    vectors = [ndarray_to_bytes(vector) for vector in masked]
    content[RECORD_KEY_CONFIGS] = ConfigRecord({Key.MASKED_PARAMETERS: vectors})
    return Message(content, reply_to=message)


def _keep_shares(state: SecAggPlusState, stage: Any) -> list[int]:
    """Put the shares of the other clients' secrets into the state, and return the nodes of these clients."""
    nodes, ciphertexts = stage[Key.SOURCE_LIST], stage[Key.CIPHERTEXT_LIST]
    if len(ciphertexts) + 1 < state.threshold or len(set(nodes)) < len(nodes):
        raise ValueError("Not enough clients share their secrets.")
    for node, ciphertext in zip(nodes, ciphertexts, strict=True):
        sender, receiver, *shares = share_keys_plaintext_separate(decrypt(state.ss2_dict[node], ciphertext))
        if (sender, receiver) != (node, state.nid):
            raise ValueError(f"Node {state.nid} received the shares of node {sender} for node {receiver}.")
        state.rd_seed_share_dict[node], state.sk1_share_dict[node] = shares
    return nodes


def _masked(state: SecAggPlusState, nodes: list[int], vectors: list[np.ndarray]) -> list[np.ndarray]:
    """Return vectors plus the client's own mask, and plus or minus a mask for each other client, modulo 2^32."""
    shapes = [vector.shape for vector in vectors]
    total = [vector + own for vector, own in zip(vectors, mask(state.rd_seed, shapes), strict=True)]
    secret = bytes_to_private_key(state.sk1)
    for node in nodes:
        shared = mask(generate_shared_key(secret, bytes_to_public_key(state.public_keys_dict[node][0])), shapes)
        sign = 1 if state.nid > node else -1
        total = [part + sign * other for part, other in zip(total, shared, strict=True)]
    return [part % MODULUS for part in total]


def _checked_range(state: SecAggPlusState) -> float:
    """Return the largest entry that the masks allow; refuse another modulus than that of the masks."""
    if state.mod_range != MODULUS:
        raise RefusedError(f"secure aggregation: its modulus is {state.mod_range}, but must be 2^32.")
    return float(state.clipping_range)


def _difference(sent: ArrayRecord, received: ArrayRecord) -> list[np.ndarray]:
    """Return `sent` minus `received` in float64, because Flower quantises in the type of its input."""
    same = has_shapes(received, {name: tuple(array.shape) for name, array in sent.items()})
    pairs = [(array.numpy().astype(np.float64), received[name].numpy() if same else 0) for name, array in sent.items()]
    return [np.asarray(now - before) for now, before in pairs]


def has_shapes(received: ArrayRecord, shapes: dict[str, tuple[int, ...]]) -> bool:
    """Return whether a broadcast has the names and shapes of a message, as a model does. Both sides use this rule."""
    return shapes == {name: tuple(array.shape) for name, array in received.items()}

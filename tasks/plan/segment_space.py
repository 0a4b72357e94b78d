"""A sample that no segment of the store can ever hold is refused before a target is started for it."""

from __future__ import annotations

from profiles.schema import Profile
from tasks.errors import UsageError
from tasks.plan.sizes import bytes_per_token
from tasks.stream.checksum import SEAL_BYTES
from tasks.stream.reserve import largest_object

_PADDING_BYTES = 2 * 64
"""What aligns the two tensors of a sample."""


def refuse_samples_beyond_a_segment(profile: Profile, hidden_size: int) -> None:
    """Check the largest sample that this profile allows: a context full of prompt and answer.

    Args:
        hidden_size: The target's.

    Raises:
        UsageError: It has more bytes than one segment can hold; with both, and the lengths that would fit.
    """
    target, segment = profile.target, profile.store.segment_bytes
    token = bytes_per_token(hidden_size, len(target.aux_layer_ids), target.dtype)
    # The last token of an answer has no state.
    tokens, room = target.max_model_len - 1, largest_object(segment) - _PADDING_BYTES - SEAL_BYTES
    if tokens * token <= room:
        return
    raise UsageError(
        f"the largest sample cannot lie in the store: {tokens:,} tokens (target.max_model_len "
        f"{target.max_model_len:,}; the longest prompt beside stream.max_new_tokens "
        f"{profile.stream.max_new_tokens:,} has {target.max_model_len - profile.stream.max_new_tokens:,}) of "
        f"{token:,} bytes are {tokens * token:,}; a segment of {segment:,} bytes holds objects of up to "
        f"{largest_object(segment):,}",
        where="store.segment_bytes, target.max_model_len",
        hint=f"raise store.segment_bytes, or lower target.max_model_len to {max(room, 0) // token + 1:,}",
    )

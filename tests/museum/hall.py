"""All exhibits, most painful first."""

from __future__ import annotations

from types import ModuleType
from typing import Final

from tests.museum import (
    test_01_never_stops,
    test_02_pad_is_eos,
    test_03_template_without_markers,
    test_04_lying_offsets,
    test_05_truncation,
    test_06_prompt_boundary,
    test_07_mask_lost_in_packing,
    test_08_packing_leaks,
    test_09_packing_loses,
    test_10_reasoning_stripped,
    test_11_never_emitted,
    test_12_tool_arguments,
    test_13_double_bos,
    test_14_template_drift,
    test_15_forged_turns,
    test_16_slow_preparation,
    test_17_waiting_ranks,
    test_18_stale_cache,
    test_19_resume,
    test_20_world_size,
    test_21_crash_leftovers,
    test_22_loss_weights,
    test_23_no_control,
    test_24_uneven_ranks,
    test_25_nobody_looks,
)

HALL: Final[tuple[ModuleType, ...]] = (
    test_01_never_stops,
    test_02_pad_is_eos,
    test_03_template_without_markers,
    test_04_lying_offsets,
    test_05_truncation,
    test_06_prompt_boundary,
    test_07_mask_lost_in_packing,
    test_08_packing_leaks,
    test_09_packing_loses,
    test_10_reasoning_stripped,
    test_11_never_emitted,
    test_12_tool_arguments,
    test_13_double_bos,
    test_14_template_drift,
    test_15_forged_turns,
    test_16_slow_preparation,
    test_17_waiting_ranks,
    test_18_stale_cache,
    test_19_resume,
    test_20_world_size,
    test_21_crash_leftovers,
    test_22_loss_weights,
    test_23_no_control,
    test_24_uneven_ranks,
    test_25_nobody_looks,
)

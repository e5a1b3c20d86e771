"""What is promised, and which tests show it."""

from __future__ import annotations

import re
from typing import NamedTuple
from xml.etree import ElementTree as ET

# Of each promise, parts of the names of its tests: all that match must pass, and there must be one of each.
PROMISES = {
    "2.2 fp32 ids equal transformers'; bf16 margins": ["test_exactness"],
    "6.3 every set of kernels: bounds against float64, the same bits, what KV dtypes cost": [
        *("test_a_product_is_within", "test_a_gated_product_is_within"),
        *("test_attention_to_what_is_stored", "test_attention_to_random_numbers"),
        *("test_attention_of_a_row_has_the_same_bits", "test_the_same_bits_alone_and_together"),
        *("test_what_a_dtype_costs", "test_a_set_runs_where", "test_a_set_that_cannot_run"),
    ],
    "2.3 64 streams, full arena, conservation; one chunk": ["test_64_streams", "test_a_long_prompt_delays"],
    "2.4 weights shared; a flipped byte is REJECTED": [
        "test_the_engine_uses_the_loaders",
        "test_a_flipped_byte",
    ],
    "2.5 reflection; status --json": ["test_a_client_without_stubs", "test_status_shows", "test_detached_it"],
    "2.6 reported faults": [f"s_{row}_" for row in ("b1", "d1", "d2", "d4", "d7", "f1")],
    "3.1 streams cut off at random, clients killed": ["200_streams", "50_killed_client"],
    "3.2 kill -9 of each; ledger; loader replaced": [
        "test_kill_9_under_load",
        "test_the_next_leader_knows_every_live_ticket",
        "test_a_loader_killed_and_replaced",
    ],
    "3.3 SIGTERM of each under 8 streams; 30 s without etcd": ["test_sigterm_under_8", "test_s_e10_"],
    "3.5 traces and metrics": ["test_a_request_is_one_trace", "test_a_publish_is_one_trace", "test_s_h2_"],
    "4.7 reported faults of artifacts": [
        f"r_{row}_" for row in ("a13", "a24", "f1", "f2", "f4", "g1", "g2", "g4", "g5")
    ],
    "4 nothing in a model's directory is run": ["test_a_conversion_in_the_models_directory"],
    "4 signatures, qualifications, audit": [
        "test_what_nobody_trusted_has_signed",
        "test_a_served_artifact_is_qualified",
        "test_a_verdict_and_its_audit_record",
        "test_the_oldest_go_as_the_newest_comes",
        "test_the_oldest_publication_goes",
        "test_a_statement_whose_answer_was_lost",
        "test_a_signature_of_another_artifact_goes",
        "test_a_private_key_that_others_may_touch",
        "test_a_pipe_is_no_key",
    ],
    "4 what no gateway could read is refused, and holds nobody up": [
        "test_what_no_gateway_could_read",
        "test_a_template_that_makes_much_of_little",
        "test_an_artifact_that_cannot_be_generated_with",
    ],
    "4 what failed and was mended is published again": ["test_what_failed_before_does_not_end"],
    "4 inspect and diff refuse what is damaged; the page is enough": [
        "test_what_is_damaged_is_status_1",
        "test_the_page_is_enough",
    ],
    "3.7 reported faults": [
        f"{row}_"
        for row in (
            *("s_a1", "s_a2", "s_a4", "s_a5", "s_a7", "s_a11", "s_a13", "s_b10", "s_e1", "s_e2", "s_e3"),
            *("s_e6", "s_e7", "s_e10", "s_f2", "s_f4", "s_g2", "s_h1", "s_h2", "s_h3"),
            *("r_e2", "r_e3", "r_e4", "r_e7", "r_e9"),
        )
    ],
    "4 memory guard: refused before it starts, idle goes first": [
        "r_a12_",
        "test_a_load_that_would_pass_the_memory_guard",
        "test_copies_of_weights_stay_below",
        "test_all_that_is_needed_stays_below",
        "test_an_engine_without_memory_for_keys_and_values",
    ],
    "4 reads: the best way that works; gentle beside traffic; once for all ranks": [
        "test_the_best_way_that_works",
        "test_reads_hold_back_while",
        "test_every_rank_gets_exactly_its_part",
    ],
    "4 artifacts over HTTP, through a cache": [
        "test_loader_cached_artifacts",
        "test_loader_store_faults",
        "test_loader_cache_sharing",
        "test_an_artifact_is_served_from_an_http_store",
        "test_an_artifact_of_an_http_store_is_served_by_one_command",
    ],
    "4 convert: what would answer wrongly is refused; nothing is left when it is ended": [
        *(
            "test_what_would_answer_wrongly",
            "test_what_the_engine_cannot_run",
            "test_a_value_that_cannot_be_kept",
        ),
        *("test_a_bent_value_fails", "test_values_too_small", "test_loader_torch.test_a_flipped_bit"),
        *("test_no_code_is_run", "test_a_parameter_of_no_tensor", "test_the_remedy_for_a_quantised_source"),
        "test_what_is_no_whole_zip_of_weights_is_refused",
        *("test_an_artifact_takes_no_other", "test_the_place_of_a_", "test_a_file_that_cannot_be_made"),
        "test_a_conversion_that_is_asked_to_end",
    ],
    "5.7 reported faults of caches; keys and values are kept where they are the same": [
        *(
            "r_a16_s_c1_",
            "s_c5_",
            "test_answers_are_right_and_nobody_is_refused",
            "test_what_was_computed_is_not",
        ),
        *("test_a_page_outlives_its_reservation", "test_an_answer_that_a_stop_string_ends_tells"),
    ],
    "5 generations share steps in equal parts": [
        "test_a_thousand_prompts_for_one_model",
        "test_what_nobody_waits_for",
    ],
    "4.3 the converter's memory": ["test_a_gigabyte_passes"],
    "4.4 fault matrix; fuzzer": [
        *("test_checkpoint_faults", "a_malformed_header", "no_bytes_crash", "damage_to_any_file"),
        *("a_table_that_lies_reaches_no_engine", "a_header_is_read_back", "every_tensor_lies_where"),
    ],
    "4.6 graph hash; two build hosts": [
        *("test_checkpoint_graph_hash", "graph_mismatch", "built_otherwise_than_stored", "two_build_hosts"),
    ],
    "5 generations: load beside, switch, drain, dispose": [
        *(f"r_{row}_" for row in ("a1", "a9", "a11", "a21", "a22", "a27", "c1", "c10")),
        *("s_c8_", "s_c9_", "test_the_last_caller_to_leave_calls_it_off", "test_a_third_generation"),
        *(
            "test_a_revision_names_one_artifact",
            "test_a_revision_with_two_artifacts",
            "test_what_was_committed_stays",
            "test_what_is_served_and_failed",
        ),
    ],
    "5.3 a failure at any stage: old answers, ready, stage and reason": [
        *("r_a7_", "r_b9_", "r_e11_", "s_c10_", "r_a12_a_candidate", "test_a_disposal_that_fails"),
    ],
    "4.5 kill -9 of converter and loader": [
        "test_a_kill_at_any_moment",
        "test_a_converter_does_not_outlive_its_command",
        "test_a_loader_killed_at_any_point",
    ],
    "5.2 invariants of swaps, in a simulation of all that decides": [
        "test_every_invariant_holds_in_every_schedule",
        "test_a_fault_of_the_product_breaks_its_invariant",
        "test_the_page_quotes_the_invariants",
    ],
    "5 drain_then_load, fallback, max_drain_s": [
        *("test_engine_making_way", "test_what_an_operator_says_is_on_record", "test_loader_verify_only"),
        *("test_drain_then_load", "test_engine_drain_over", "test_an_answer_whose_weights_were_replaced"),
    ],
    "5.2 invariants of swaps, on real processes": ["test_swaps_hold_on_real_processes"],
    "5 a token that cannot be told ends its stream": ["test_engine_delivery"],
    "5.4 publishes end in order": [
        "test_publishes_one_after_another_are_applied_in_order",
        "test_two_hundred_publishes_under_load",
        "test_the_next_publish_of_a_cohort_ends_the_one_before",
        "test_a_commit_is_one_transaction",
    ],
    "5.5 min_ready; return to the last commit": [
        "test_with_two_that_must_be_ready",
        "test_with_one_that_must_be_ready",
        "test_what_was_switched_to_is_left_again",
        "test_engines_that_are_yet_to_be_started",
    ],
    "5 warm-up: own requests, shapes of service, what comes is checked; loads hold back": [
        "test_an_artifact_that_answers_as_expected",
        "test_requests_and_shapes_go_the_whole_way",
        "test_logits_of_another_form_are_named",
        "test_an_artifact_whose_own_requests_are_refused",
        "test_reads_take_a_part_of_what_is_idle",
        "test_a_rest_is_in_proportion",
        "test_what_is_a_loads_own_is_told",
    ],
    "5 events that operators know; a log can be filtered": [
        "test_operators_find_the_events",
        "test_component_and_name_decide",
    ],
    "5.7 reported faults of probes and of a registry that is away": [
        *(f"r_{row}_" for row in ("a15", "b7", "e1", "e5")),
        *("s_e5_", "test_an_unknown_check_is_told", "test_what_is_published_and_serves_nothing"),
    ],
    "5 away from the registry: stale is said; an engine may start from what it remembers": [
        "test_engine_last_commit",
        "test_an_engine_starts_from_what_was_committed",
        "test_a_loss_is_one_line",
        "test_what_has_vanished_is_missed",
        "test_a_registry_restored_from_a_backup",
    ],
    "5 progress and the last swap, per engine and model": ["test_engine_progress", "test_cohort_progress"],
    "5 rollback, abort, history": ["test_rollbacks", "test_history", "test_rolling_back"],
    "5 what operators say is checked before anything is done, and shown as it is": [
        *(
            "test_what_is_no_artifact_id",
            "test_words_for_the_record",
            "test_what_is_out_of_bounds_is_refused",
        ),
        *("test_what_was_said_of_a_publish", "test_signatures_are_bounded"),
    ],
    "5.6 a registry that no word comes from changes no step; pushes go on after a leader's death": [
        "test_a_black_holed_registry",
        "test_what_is_served_is_pushed",
        "test_the_next_leader_goes_on_with",
        "test_the_token_goes_to_the_registry",
        "test_loader_fallback",
    ],
    "5 roles on every hop; nobody is let in unasked beyond loopback": [
        "test_each_role_does_its_work",
        "test_inference_credentials_say_nothing",
        "test_tokens_are_not_generated_without_a_ticket",
        "test_beyond_loopback_nobody_starts",
        "test_every_method_has_its_roles",
        "test_a_credential_that_is_withdrawn",
        "test_a_system_serves_with_tls_on_every_hop",
        "test_a_certificate_is_a_credential",
        "test_tenants_share_nothing",
        "test_nobody_ends_another_tenants",
    ],
    "5 credentials: made, mended, withdrawn, refused, expired": [
        *("test_a_token_goes_into_a_file", "test_nothing_is_added_to_what", "test_a_line_is_added_behind"),
        *("test_a_file_that_was_mended_by_its_mode", "test_a_token_is_withdrawn_also_where"),
        *(
            "test_a_file_that_went_bad",
            "test_a_watch_ends_with_its_callers",
            "test_who_is_refused_is_counted",
        ),
        *("test_where_tls_is_in_the_way", "test_an_expired_certificate_is_refused"),
        "test_files_that_cannot_be_used_fail_the_push",
    ],
    "6 KV memory grows, is conserved, gives way": [
        "test_engine_block_pool",
        *("test_no_step_writes_into_a_page", "test_new_requests_leave_some", "test_kept_pages_go_before"),
        *("test_an_arena_that_fills_up_grows", "test_lent_bytes_are_never_touched", "test_memory_goes_back"),
        "test_the_same_use_never_leads_back_and_forth",
    ],
    "6 memory is promised as it is expected to be needed, and the youngest gives way": [
        *("test_engine_preemption", "test_engine_set_back", "test_engine_answer_length"),
        *(
            "test_half_of_a_chunk_is_for_the_first",
            "test_above_the_soft_watermark",
            "test_above_the_hard_watermark",
        ),
        "test_a_decode_without_room_waits",
    ],
    "6 weights are packed once for a host, and nothing half made or foreign is taken for them": [
        *(
            "test_every_tensor_is_packed_however",
            "test_the_first_to_ask_has_it_packed",
            "test_a_warm_start_packs",
        ),
        *("test_all_who_ask_at_once_have_it", "test_a_file_that_the_disk_spoilt_is_made_anew"),
        *("test_a_file_made_of_other_weights", "test_where_none_can_be_made_weights_come"),
        *("test_a_loader_killed_at_any_point_of_packing", "test_what_a_killed_loader_left_packed"),
        *("test_what_was_derived_goes", "test_the_memory_guard_counts_the_packed"),
        *("test_only_the_layout_that_was_said", "test_a_layout_makes_another_build"),
        "test_kernels_get_their_layout_and_answers",
    ],
    "5.7 reported faults of publishing": [
        f"r_{row}_" for row in ("a3", "a4", "a18", "a26", "b1", "b4", "c3", "c6")
    ],
    "6.6 reported faults of input, overload and preemption": ["s_g1_", "s_b2_", "s_b3_", "s_b5_"],
    "6.3 the same bits in every company, in one engine": ["s_d11_"],
    "6.4 a random run on full arenas: one end for each, nothing lost": [
        "test_a_random_run_ends_every_request",
        "test_a_fault_of_the_engine_is_found",
    ],
    "6 logprobs beside their tokens, the same bits in any company": [
        "test_logprobs_are_told_on_request",
        "test_a_logprob_is_of_the_models_own",
        "test_completion_logprobs",
        "test_a_row_is_chosen_from_as_if_it_were_alone",
    ],
    "6 bounds of an engine are known before it is asked": [
        "test_requests_over_what_an_engine_takes_at_once_wait",
        "test_the_longest_context_is_known",
    ],
    "6 threads and memory by the limits of control groups": [
        "test_the_least_of_quotas_and_cpusets",
        "test_every_limit_above_this_process",
        "test_what_is_not_set_is_bounded",
    ],
}


class Line(NamedTuple):
    promise: str
    passed: bool
    seen: str


def of_tests(promise: str, names: list[str], cases: list[ET.Element]) -> Line:
    bad, said = [], []
    for name in names:
        matching = [case for case in cases if name in f"{case.get('classname')}.{case.get('name')}"]
        bad += [f"no test {name}"] * (not matching)
        bad += [str(case.get("name")) for case in matching if not _passed(case)]
        said += [f"{len(matching)} x {name}", *_figures(matching)]
    return Line(promise, not bad, "\n".join(bad or said))


def _passed(case: ET.Element) -> bool:
    return all(case.find(how) is None for how in ("failure", "error", "skipped"))


def _figures(cases: list[ET.Element]) -> list[str]:
    """Lines with figures that the tests printed."""
    texts = [case.findtext("system-out") or "" for case in cases]
    return [
        line
        for text in texts
        for line in text.splitlines()
        if re.match(
            r"(overload|peak|checks|smaps|steps|exact|graph|fuzzed|killed|schedules|swaps|random)", line
        )
    ]

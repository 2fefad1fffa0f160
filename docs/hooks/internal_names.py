"""Names that rooms export for each other, and no user needs: they have no entry in the reference."""

from __future__ import annotations

# Module below `headrace` -> names. What is here can change without notice. What users call has an entry.
INTERNAL_NAMES: dict[str, frozenset[str]] = {
    module: frozenset(names.split())
    for module, names in {
        "batching": """
            apply_window BatchTable Chunking ChunkingFunction Column CopyingItemStack find_cut_keys
            frames_to_cut gather_columns ItemStack num_windows pack_columns pad_columns parse_chunking
            parse_context_window Pieces plan_chunks PLAN_VERSION PlanCounts PlannedBatch ReuseCheck
            slice_pad_zeros TextColumn vary_chunking window_bounds WINDOW_SEQS WindowPlan
        """,
        "dataloader2.graph": "DataPipeGraph",  # the type of what `traverse_dps` returns
        "datasets": "gathering resolve_callable resolve_class",
        "engine": """
            CurrentItem Event Failure is_in_place make_executor may_be_elsewhere Mode note_each note_items note_number
            note_together NumberedTags where_runs
        """,
        "errors": "check_count did_you_mean takes_note",
        "files": """
            atomic_write FileStamp hold_in_use kept_folder kept_path note_use PendingFile read_seq_lens
            read_tag_list remove_unused resolve_inside TOO_MANY_OPEN TOO_MANY_OPEN_FIX user_cache_dir
            warn_once_of_folder
        """,
        "index": """
            AMBIGUOUS chain_tags GeneratedTags join_tags MISSING open_or_build open_or_join pack_texts PackedTags
            TagJoin
        """,
        "loading": "LoaderPosition LoaderState",
        "order": """
            derive_order_seed full_epoch_of InterleavedOrder Lane MixedOrder Mixture occurrences
            OrderCorpus OrderPlanner OrderRecipe PermutedOrder RangeOrder RepeatedOrder restrict_order
            slice_bounds VALID_FORMS
        """,
        "pipes.graph": """
            find_dps Graph is_iter_pipe is_map_pipe is_pipe list_dps lowest_common_ancestor Parts remove_dp
            replace_dp sources_of split_graph traverse_dps
        """,
        "ranks": "LateRanks parts_of_torch",
        "rng": "wants_rng",
        "sources": "SORT_LENGTHS",
        "specs": "is_plain_tensor takes_for_classes",
    }.items()
}

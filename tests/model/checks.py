"""Checks of the models: their arguments and what must come of them. run.py runs them; README.md explains them."""

BOTH = ("keys", "gate")  # transports of `exchange`


def on_both(program, arguments):
    """One check for each transport."""
    return [(program, f"transport={transport} {line}", "holds") for line in arguments for transport in BOTH]


def broken(program, usual, variants):
    """Checks of wrong variants: each line says which property the variant must be found to break, and how."""
    return [(program, f"{usual} variant={line}".strip(), found) for line, found in variants]


# Program, arguments, and how the result must begin. "exchange" has one exchange, "exchange2" two.
EXCHANGE = on_both("exchange", [
    "rails=2 chunks=2 weight=3 failures=2 releases=1 returns=1",
    "rails=2 chunks=2 weight=3 failures=2 releases=1 aborts=2 force=1",
    "rails=2 chunks=2 weight=3 failures=2 releases=1 aborts=2 force=1 unasked=0",
    "rails=2 chunks=2 weight=3 failures=2 releases=1 returns=1 rounds=2",
    "rails=3 chunks=2 weight=4 failures=2 releases=1",
    "rails=2 chunks=2 weight=3 failures=2 releases=1 returns=1 variant=reuse_by_generation",
    "rails=3 chunks=2 weight=4 failures=2 releases=1 variant=dead_rail_keeps_one",
    "rails=2 chunks=2 weight=3 failures=2 aborts=2 variant=tombstone_names_nothing",
]) + on_both("exchange2", [
    "rails=2 chunks=2 chunks2=1 weight=2 failures=1 releases=1",
    "rails=2 chunks=2 chunks2=1 weight=2 failures=1 aborts=1",
    "rails=2 chunks=1 chunks2=1 weight=2 failures=1 aborts=2",
    "rails=3 chunks=1 chunks2=1 weight=3 failures=2 aborts=1",
    "rails=3 chunks=2 chunks2=1 weight=3 failures=1",
    "rails=2 chunks=1 chunks2=1 weight=2 failures=2 returns=1",
])

# sums=0: what must be found is the damage, not only a sum of weights that is wrong.
EXCHANGE += broken("exchange", "rails=3 chunks=2 weight=4 failures=2 releases=1 sums=0 transport=keys", [
    ("split_keeps_weight", "S2"),
    ("release_last_weight", "S2"),
    ("done_by_chunks", "S3"),
    ("every_fence_acknowledged", "L1"),
    ("landed_bytes_exact", "S2"),
    ("repost_unasked", "S2"),
    ("dead_rail_returns_weight", "S2"),
    ("bounce_returns_weight", "S2"),
    ("rehome_by_chunks", "L1"),
    ("first_fence_settles", "L1"),
    ("second_rehome", "S1"),
    ("receiver_does_not_end", "S1"),
    ("round_not_raised", "S2"),
    ("arrived_weight_kept", "S1"),
    ("round_reused rounds=2", "S2"),
    ("complete_at_once", "S3"),
    ("complete_forgotten", "S3"),
    ("spread_despite_failure", "S2"),
    ("spread_during_release", "S2"),
    ("spread_during_bounce", "S2"),
    ("old_weight_kept", "S2"),
    ("pool_weight_kept", "S2"),
    ("no_second_fence", "S2"),
    ("quiesced_early aborts=1", "S3"),
    ("quiesced_names_nothing aborts=1", "S1"),
    ("quiesced_by_rehome aborts=1", "S1"),
    ("tombstone_names_nothing aborts=2 unasked=0", "S1"),
    ("abort_not_returned aborts=1 unasked=0", "L2"),
]) + broken("exchange", "rails=3 chunks=2 weight=4 failures=2 releases=1 sums=0 transport=gate", [
    ("second_rehome", "S3"),
    ("round_reused rounds=2", "S5"),
]) + broken("exchange", "rails=2 chunks=2 weight=4 failures=2", [
    ("fence_without_credit releases=1 transport=keys", "S6"),
    ("refused_counts aborts=1 transport=gate", "S3"),
    ("reuse_before_answer returns=1 sums=0 transport=gate", "S2"),
    ("no_rekey returns=1 transport=keys", "L1"),
    ("use_without_key returns=1 aborts=1 force=1 transport=keys", "S1"),
]) + broken("exchange2", "rails=2 chunks=1 chunks2=1 weight=2 failures=1", [
    ("aborted_blocks_answer aborts=1", "L1"),
    ("rehome_names_one", "L1"),
    ("first_answer_for_all", "S3"),
    ("quiesced_stands_for_rehome aborts=1", "L1"),
    ("abort_ends_rehome rails=3 weight=3 failures=2 aborts=1", "S7"),
])

# Larger sizes, only with --large.
EXCHANGE_LARGE = on_both("exchange", [
    "rails=3 chunks=4 weight=4 failures=2",
    "rails=3 chunks=4 weight=4 failures=1 releases=1",
    "rails=3 chunks=3 weight=6 failures=2 releases=1",
    "rails=3 chunks=2 weight=4 failures=2 releases=2",
    "rails=3 chunks=2 weight=4 failures=2 releases=1 returns=1",
    "rails=3 chunks=2 weight=4 failures=2 releases=1 aborts=2 force=1",
    "rails=3 chunks=3 weight=4 failures=2 aborts=2 force=1",
    "rails=3 chunks=2 weight=4 failures=2 returns=1 aborts=1 force=1",
    "rails=2 chunks=3 weight=4 failures=2 releases=1 returns=1",
]) + on_both("exchange2", [
    "rails=2 chunks=1 chunks2=1 weight=2 failures=2 returns=1 aborts=1",
    "rails=2 chunks=1 chunks2=1 weight=2 failures=2 returns=1 releases=1",
    "rails=2 chunks=2 chunks2=2 weight=2 failures=1 aborts=1",
    "rails=3 chunks=2 chunks2=1 weight=3 failures=2",
    "rails=3 chunks=1 chunks2=1 weight=3 failures=2 aborts=2",
])


READY = [("ready", line, "holds") for line in [
    "nodes=2 jobs=2 credit=1",
    "nodes=2 jobs=2 credit=1 reduce=0",
    "nodes=2 jobs=2 credit=2",
    "nodes=2 jobs=2 credit=4 size=2",
    "nodes=3 jobs=2 traffic=1",
    "nodes=3 jobs=2 traffic=2",
    "nodes=2 jobs=2 aborts=2",
    "nodes=2 jobs=2 aborts=1 unknown=1 expiries=1",
    "nodes=3 jobs=1 traffic=1 aborts=1",
    "nodes=3 jobs=1 traffic=2 aborts=1 credit=1",
    "nodes=3 jobs=1 traffic=2 aborts=1 unknown=1 expiries=1",
    "nodes=3 jobs=1 traffic=2 mistake=1",
    "nodes=2 jobs=2 mistake=1",
    "nodes=2 jobs=2 aborts=1 credit=1 unasked=1",
    "nodes=3 jobs=1 traffic=2 aborts=1 unasked=1",
    "nodes=3 jobs=1 traffic=2 unknown=1 expiries=1 unasked=1",
    "nodes=3 jobs=1 traffic=2 mistake=1 unasked=1",
    "nodes=2 jobs=1 aborts=1 eager=1 reduce=0",
    "nodes=2 jobs=2 credit=1 eager=1",
    "nodes=2 jobs=2 credit=1 eager=3",
    "nodes=2 jobs=2 aborts=1 eager=1",
    "nodes=2 jobs=2 mistake=1 eager=2",
    "nodes=2 jobs=2 aborts=1 unknown=1 expiries=1 eager=2",
    "nodes=2 jobs=2 aborts=1 credit=1 unasked=1 eager=1",
    "nodes=3 jobs=1 traffic=2 aborts=1 eager=1",
    "nodes=3 jobs=2 traffic=2 eager=1",
    "nodes=2 jobs=1 aborts=1 eager=2 device=1 reduce=0",
    "nodes=2 jobs=2 credit=1 eager=2 device=1",
    "nodes=2 jobs=2 aborts=1 eager=1 device=1",
    "nodes=2 jobs=2 aborts=1 credit=1 unasked=1 eager=2 device=1",
    "nodes=3 jobs=1 traffic=2 aborts=1 eager=2 device=1",
]]

# The last two lines are no variants: a grant larger than half of the credit, and a property that no rule can promise.
READY += broken("ready", "nodes=2 jobs=2 credit=1", [
    ("ready_waits_for_credit", "L1"),
    ("grant_always_rides", "L1"),
    ("half_before", "L1"),
    ("sending_waits_for_zones", "L1"),
    ("parsed_out_of_order", "L1"),
]) + broken("ready", "nodes=3 jobs=2", [
    ("grant_always_rides", "L1"),
    ("half_per_job", "L1"),
    ("sending_waits_for_zones", "L1"),
]) + broken("ready", "nodes=2 jobs=1", [
    ("send_uncompared mistake=1", "S4"),
    ("early_ready_lost unknown=1", "L1"),
    ("known_ready_expires expiries=1", "L1"),
    ("memory_back_at_once aborts=1", "S1"),
    ("quiesced_early aborts=1", "S1"),
    ("no_tombstone aborts=1 reduce=0", "S1"),
    ("unknown_abort_ignored aborts=1", "L2"),
    ("done_abort_ignored aborts=1", "L2"),
    ("abort_not_returned aborts=1", "L2"),
    ("holders_only aborts=1 credit=1 unasked=1", "L2"),
    ("tombstone_silent aborts=1 unknown=1 expiries=1 unasked=1", "L2"),
    ("eager_done_at_once eager=2 reduce=0", "S2"),
    ("eager_uncompared eager=2 mistake=1", "S4"),
    ("eager_unsubmitted eager=2", "S1"),
    ("eager_and_grant eager=1 reduce=0", "S1"),
    ("eager_keeps_grant eager=1", "S1"),
    ("eager_guessed eager=1", "L1"),
    ("eager_not_taken_back eager=2 device=1", "S2"),
]) + broken("ready", "nodes=3 jobs=1", [
    ("ready_to_partners traffic=1", "S3"),
    ("refused_counts traffic=2 aborts=1", "S2"),
    ("abort_not_relayed traffic=2 unknown=1 expiries=1", "L2"),
    ("abort_not_relayed traffic=2 unknown=1 expiries=1 unasked=1", "L2"),
]) + [
    ("ready", "nodes=2 jobs=2 credit=2 size=2", "L1"),
    ("ready", "nodes=3 jobs=1 traffic=2 mistake=1 strict=1", "S4"),
]

READY_LARGE = [("ready", line, "holds") for line in [
    "nodes=3 jobs=2",
    "nodes=3 jobs=2 credit=3",
    "nodes=3 jobs=1 aborts=1",
    "nodes=3 jobs=1 mistake=1",
    "nodes=3 jobs=1 traffic=2 aborts=2",
    "nodes=3 jobs=1 traffic=2 aborts=1 unknown=2 expiries=2",
    "nodes=3 jobs=1 traffic=2 aborts=1 credit=1 unasked=1",
    "nodes=3 jobs=1 traffic=2 aborts=1 unknown=1 expiries=1 unasked=1",
]]

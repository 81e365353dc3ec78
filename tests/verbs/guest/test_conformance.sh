# The conformance suite of all transports, over real queue pairs, and what only devices have.
# shellcheck shell=bash
exec "$BUILD/tests/conformance/verbs_conformance_test"

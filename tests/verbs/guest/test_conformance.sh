# The conformance suite of all transports, over real queue pairs, and what only devices have.
# shellcheck shell=bash
modprobe vgem # makes dma-bufs
exec "$BUILD/tests/conformance/verbs_conformance_test"

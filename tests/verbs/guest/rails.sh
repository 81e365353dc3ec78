# Sourced. make_rails SET NODES RAILS [MTU]: one Soft-RoCE device for each rail of each node, all in one network
# namespace, for Soft-RoCE knows no other. Rail r of node n of set s: interface s<n>r<r>, device rxe_s<n>r<r>, address
# 10.<number of the set>.<r>.<n + 1>/24. Two nodes: a veth pair for each rail. More: a bridge for each rail.
# shellcheck shell=bash
rails_sets=0

make_rails() {
  local set=$1 nodes=$2 rails=$3 mtu=${4:-4200} node rail batch=/tmp/make_rails number=$rails_sets
  if ((rails_sets++ == 0)); then
    modprobe -a rdma_rxe veth bridge rdma_ucm sch_tbf sch_netem || return 1
    local key
    for key in all default; do
      echo 0 >/proc/sys/net/ipv4/conf/$key/rp_filter
      echo 1 >/proc/sys/net/ipv4/conf/$key/accept_local
      echo 1 >/proc/sys/net/ipv4/conf/$key/arp_ignore
      echo 2 >/proc/sys/net/ipv4/conf/$key/arp_announce
    done
    # A lost packet is sent again, which this kernel's Soft-RoCE does wrongly at times: its requester and its completer
    # race, and the peer refuses what comes as invalid. No packet may therefore be lost for want of room: 24 queue pairs
    # have 1,536 packets under way.
    echo 100000 >/proc/sys/net/core/netdev_max_backlog
    ip link set lo up || return 1
    # Every address of every node is local here. A packet must take the interface that it is bound to all the same, so
    # the local table comes after the rules for outgoing interfaces.
    ip rule add pref 30000 lookup local && ip rule del pref 0 lookup local || return 1
  fi
  for ((rail = 0; rail < rails; rail++)); do
    if ((nodes == 2)); then
      echo "link add ${set}0r$rail mtu $mtu type veth peer name ${set}1r$rail mtu $mtu"
    else
      echo "link add $set-br$rail mtu $mtu type bridge"
      echo "link set $set-br$rail up"
      for ((node = 0; node < nodes; node++)); do
        echo "link add $set${node}r$rail mtu $mtu type veth peer name $set${node}p$rail mtu $mtu"
        echo "link set $set${node}p$rail master $set-br$rail up"
      done
    fi
    for ((node = 0; node < nodes; node++)); do
      echo "addr add 10.$number.$rail.$((node + 1))/24 dev $set${node}r$rail"
      echo "link set $set${node}r$rail up"
      # Reads of a rail over its own port stay on it.
      echo "rule add pref 99 oif $set${node}r$rail to 10.$number.$rail.$((node + 1)) lookup local"
      echo "rule add pref $((100 + number * 256 + node * 16 + rail)) oif $set${node}r$rail lookup main"
    done
  done >$batch
  ip -batch $batch || return 1
  # One processor takes in all packets of a rail of a node. A veth end hands packets to the processor that happens to
  # send, a shaper sends from either, and packets of two processors overtake each other. Soft-RoCE takes that for loss:
  # over shaped rails it sent thousands of packets again.
  for ((node = 0; node < nodes; node++)); do
    for ((rail = 0; rail < rails; rail++)); do
      printf '%x' $((1 << (node + rail) % $(nproc))) >/sys/class/net/$set${node}r$rail/queues/rx-0/rps_cpus || return 1
    done
  done
  for ((node = 0; node < nodes; node++)); do
    for ((rail = 0; rail < rails; rail++)); do
      echo "link add rxe_$set${node}r$rail type rxe netdev $set${node}r$rail"
    done
  done >$batch
  rdma -b $batch
}

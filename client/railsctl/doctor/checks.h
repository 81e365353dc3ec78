// The checks of `railsctl doctor`: functions of the collected facts, without side effects. A check without trouble
// returns one kOk finding. A check that does not apply returns none.
#ifndef RAILS_RAILSCTL_DOCTOR_CHECKS_H_
#define RAILS_RAILSCTL_DOCTOR_CHECKS_H_

#include "client/railsctl/doctor/facts.h"
#include "client/railsctl/doctor/finding.h"

namespace rails::ctl::doctor {

// check_daemon.cc
Findings CheckDaemon(const Facts& facts);    // the daemon answers and is healthy
Findings CheckRails(const Facts& facts);     // states, and speeds compared with the interfaces'
Findings CheckVersions(const Facts& facts);  // program, daemon, railsctl and peers

// check_peers.cc
Findings CheckLinks(const Facts& facts);       // the daemons' links, and their names
Findings CheckRailCounts(const Facts& facts);  // peers with more or fewer rails
Findings CheckPeers(const Facts& facts);       // every peer whose link is up over every rail

// check_access.cc
Findings CheckConfiguration(const Facts& facts);
Findings CheckSockets(const Facts& facts);  // modes, groups, and this user's groups

// check_devices.cc
Findings CheckDevices(const Facts& facts);      // RDMA ports and their GIDs
Findings CheckDeviceFiles(const Facts& facts);  // the kernel module, and permissions of /dev/infiniband
Findings CheckPcie(const Facts& facts);
Findings CheckNuma(const Facts& facts);

// check_network.cc
Findings CheckInterfaces(const Facts& facts);  // the rails' addresses exist, and their links are up
Findings CheckMtu(const Facts& facts);
Findings CheckSubnets(const Facts& facts);  // several rails in one subnet

// check_limits.cc
Findings CheckMemlock(const Facts& facts);
Findings CheckHugePages(const Facts& facts);
Findings CheckTlsData(const Facts& facts);
Findings CheckOpenFiles(const Facts& facts);
Findings CheckClock(const Facts& facts);

// All checks, in the order of their findings' importance.
Findings CheckAll(const Facts& facts);

// The numbers by which a daemon's use of descriptors grows.
struct DaemonSize {
  uint64_t peers = 0, rails = 0, sessions = 0, segments = 0;
  bool tcp = false;  // the rails go over TCP
};

// Descriptors that a daemon may need at once. The table "Sizing" of deploy/RUNBOOK.md has the same formula.
uint64_t DescriptorsNeeded(const DaemonSize& size);

}  // namespace rails::ctl::doctor

#endif  // RAILS_RAILSCTL_DOCTOR_CHECKS_H_

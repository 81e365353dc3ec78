// The checks of `railsctl doctor`: functions of what was collected, without side effects. A check that is fine says so
// in one finding; one that has nothing to look at says nothing.
#ifndef RAILS_RAILSCTL_DOCTOR_CHECKS_H_
#define RAILS_RAILSCTL_DOCTOR_CHECKS_H_

#include "client/railsctl/doctor/facts.h"
#include "client/railsctl/doctor/finding.h"

namespace rails::ctl::doctor {

// check_daemon.cc
Findings CheckDaemon(const Facts& facts);    // does it answer, is it healthy
Findings CheckRails(const Facts& facts);     // states, and speeds against the interfaces'
Findings CheckPeers(const Facts& facts);     // every peer over every rail
Findings CheckVersions(const Facts& facts);  // program, daemon, railsctl and peers

// check_access.cc
Findings CheckConfiguration(const Facts& facts);
Findings CheckSockets(const Facts& facts);  // their modes and groups, and this user's groups

// check_devices.cc
Findings CheckDevices(const Facts& facts);      // RDMA ports and their GIDs
Findings CheckDeviceFiles(const Facts& facts);  // the kernel's module, permissions of /dev/infiniband
Findings CheckPcie(const Facts& facts);
Findings CheckNuma(const Facts& facts);

// check_network.cc
Findings CheckInterfaces(const Facts& facts);  // that the rails' addresses exist, and their links
Findings CheckMtu(const Facts& facts);
Findings CheckSubnets(const Facts& facts);  // several rails in one subnet

// check_limits.cc
Findings CheckMemlock(const Facts& facts);
Findings CheckHugePages(const Facts& facts);
Findings CheckTlsData(const Facts& facts);
Findings CheckOpenFiles(const Facts& facts);
Findings CheckClock(const Facts& facts);

// All of them, in the order in which they are worth reading.
Findings CheckAll(const Facts& facts);

// Descriptors that a daemon may need at once: 128, and for each rail 70, for each peer 2 and over TCP 4 for each rail,
// for each session 8.
uint64_t DescriptorsNeeded(uint64_t peers, uint64_t rails, bool tcp, uint64_t sessions);

}  // namespace rails::ctl::doctor

#endif  // RAILS_RAILSCTL_DOCTOR_CHECKS_H_

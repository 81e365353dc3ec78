#include "client/railsctl/doctor/checks.h"

namespace rails::ctl::doctor {

Findings CheckAll(const Facts& facts) {
  Findings all;
  // Links come before rails: a rail reaches no peer whose link is down.
  for (const auto check : {&CheckDaemon,     &CheckConfiguration, &CheckVersions, &CheckSockets,   &CheckLinks,
                           &CheckRailCounts, &CheckRails,         &CheckPeers,    &CheckDevices,   &CheckDeviceFiles,
                           &CheckInterfaces, &CheckMtu,           &CheckSubnets,  &CheckPcie,      &CheckNuma,
                           &CheckMemlock,    &CheckHugePages,     &CheckTlsData,  &CheckOpenFiles, &CheckClock}) {
    const Findings found = check(facts);
    all.insert(all.end(), found.begin(), found.end());
  }
  return all;
}

}  // namespace rails::ctl::doctor

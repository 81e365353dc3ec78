// Collects the facts that `railsctl doctor` judges. Reads sysfs and procfs below `root` (empty: this machine; tests use
// their own trees). A fact that cannot be read keeps its default: collecting does not fail.
#ifndef RAILS_RAILSCTL_DOCTOR_COLLECT_H_
#define RAILS_RAILSCTL_DOCTOR_COLLECT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/railsctl/doctor/facts.h"

namespace rails::ctl::doctor {

using AddressesByInterface = std::map<std::string, std::vector<std::string>>;  // "eth0": "10.1.0.1/24", ...

// The addresses in this process's network namespace.
AddressesByInterface OwnAddresses();

// collect_machine.cc
std::vector<Interface> ReadInterfaces(const std::string& root, const AddressesByInterface& addresses);
Machine ReadMachine(const std::string& root, const AddressesByInterface& addresses);

// collect_rdma.cc
std::vector<RdmaPort> ReadRdmaPorts(const std::string& root);
std::vector<std::string> ReadNicsWithoutRdma(const std::string& root);
// `device`: its folder in sysfs, as /sys/class/net/eth0/device.
PciLink ReadPciLink(const std::string& device);

// collect_process.cc
Clock ReadClock();
User ReadUser();
uint64_t OwnMemlockLimit();
std::vector<Socket> ReadSockets(const std::string& socket_dir);
// The process that listens there; 0 if none does, or if it is not visible (another PID namespace).
pid_t ListenerOf(const std::string& socket_path);
DaemonProcess ReadProcess(const std::string& root, pid_t pid);

// collect_config.cc
// Runs the program railsd, found beside this program or in PATH, with the file's name and `options`.
Configuration ReadConfiguration(const std::string& path, const std::vector<std::string>& options);
// The hash of the output of `railsd --print-config`, as in GetStatusResponse.config_hash.
std::string HashOf(const std::string& printed);
// Parses the output of `railsd --print-config`.
void ParseConfiguration(const std::string& yaml, Configuration* config);
// Connects to all control addresses at once. Sets `trouble` of peers that accept no connection within `limit`.
void TryPeers(absl::Duration limit, std::vector<ConfiguredPeer>* peers);

// Looks the DNS name of the peers up, if there is one.
void LookUpPeers(Configuration* config);

// The first line of a file without surrounding blanks; empty if the file cannot be read.
std::string ReadLine(const std::string& path);
// The names in a folder, sorted; empty if there is no such folder.
std::vector<std::string> ListFolder(const std::string& path);

}  // namespace rails::ctl::doctor

#endif  // RAILS_RAILSCTL_DOCTOR_COLLECT_H_

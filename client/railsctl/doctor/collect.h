// Collects what `railsctl doctor` judges. Reads files of sysfs and procfs below `root` (empty: the machine's own), so
// that tests give it trees of their own. What cannot be read stays at its default: a doctor does not fail, it says what
// it knows.
#ifndef RAILS_RAILSCTL_DOCTOR_COLLECT_H_
#define RAILS_RAILSCTL_DOCTOR_COLLECT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/railsctl/doctor/facts.h"

namespace rails::ctl::doctor {

using AddressesByInterface = std::map<std::string, std::vector<std::string>>;  // "eth0": "10.1.0.1/24", ...

// Of this process's network namespace.
AddressesByInterface LocalAddresses();

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
// The process that listens there; 0 when nobody does, or when it cannot be seen (another PID namespace).
pid_t ListenerOf(const std::string& socket_path);
DaemonProcess ReadProcess(const std::string& root, pid_t pid);

// collect_config.cc
// Asks the program railsd, which is looked for beside this one and in PATH, with these `options` besides the file's
// name.
Configuration ReadConfiguration(const std::string& path, const std::vector<std::string>& options);
// Of what `railsd --print-config` prints: as GetStatusResponse.config_hash.
std::string HashOf(const std::string& printed);
// What `railsd --print-config` prints.
void ParseConfiguration(const std::string& yaml, Configuration* config);
// Connects to all control addresses at once, and fills `trouble` of those that take no connection within `limit`.
void TryPeers(absl::Duration limit, std::vector<ConfiguredPeer>* peers);

// Looks the DNS name of the peers up, if there is one.
void LookUpPeers(Configuration* config);

// First line of a file without the blanks around it; empty when it cannot be read.
std::string ReadLine(const std::string& path);
// Names in a folder, sorted; none when there is no such folder.
std::vector<std::string> ListFolder(const std::string& path);

}  // namespace rails::ctl::doctor

#endif  // RAILS_RAILSCTL_DOCTOR_COLLECT_H_

#include "client/railsctl/doctor/peer_cause.h"

#include <cstddef>
#include <iterator>

#include "absl/strings/match.h"

namespace rails::ctl::doctor {
namespace {

struct Phrase {
  PeerCause cause;
  const char* text;
};

// Parts of the daemon's texts. The first part that occurs decides, so a cause comes before its consequences: a text may
// begin with what this daemon saw, and then give the reason why its last dial failed.
constexpr Phrase kPhrases[] = {
    {PeerCause::kTwoDaemons, "two daemons"},
    {PeerCause::kOwnPause, "itself had not run"},
    {PeerCause::kTls, "speaks TLS"},
    {PeerCause::kTls, "speaks no TLS"},
    {PeerCause::kTls, "speaks plain text"},
    {PeerCause::kTls, "set the same tls.mode on all nodes"},
    {PeerCause::kTls, "begins with \"\\025\\003"},  // a TLS alert
    {PeerCause::kTls, "begins with \"\\026\\003"},  // the beginning of a TLS handshake
    {PeerCause::kTls, "wrong version number"},      // OpenSSL's text if the other end does not speak TLS
    {PeerCause::kTls, "closed the connection and sent nothing"},
    {PeerCause::kCertificateName, "but its certificate is of"},
    {PeerCause::kCertificate, "refuses the other end"},
    {PeerCause::kCertificate, "refuses this node's certificate"},
    {PeerCause::kName, "is answered by node"},
    {PeerCause::kName, "this node's own address under the name"},
    {PeerCause::kNotListed, "is no peer of node"},
    {PeerCause::kVersion, "is of another version"},
    {PeerCause::kVersion, "another protocol"},
    {PeerCause::kVersion, "speaks gRPC"},
    {PeerCause::kVersion, "max_version"},
    {PeerCause::kSettings, "alike on all nodes"},
    {PeerCause::kSettings, "one transport on all nodes"},
    {PeerCause::kSettings, " expects "},
    {PeerCause::kLookup, "the name '"},
    {PeerCause::kRefused, "Connection refused"},
    {PeerCause::kRefused, "refuses connections"},
    {PeerCause::kNotReached, "not connected within"},
    {PeerCause::kNotReached, "does not answer either"},
    {PeerCause::kNotReached, "No route to host"},
    {PeerCause::kNotReached, "Network is unreachable"},
    {PeerCause::kNotReached, "Connection timed out"},
    {PeerCause::kNotReached, "not reached yet"},
    {PeerCause::kNoAnswer, "no hello came"},
    {PeerCause::kNoAnswer, "nothing was heard"},
    {PeerCause::kEnded, "is stopping"},
    {PeerCause::kEnded, "has restarted"},
    {PeerCause::kEnded, "closed"},
    {PeerCause::kEnded, "connection lost"},
    {PeerCause::kEnded, "Connection reset"},
};

// In the order of PeerCause.
constexpr PeerHint kHints[] = {
    /*kUnknown*/ {
        "The daemon gives no reason that doctor knows.",
        "Is railsd running there (`railsctl health`), does its control address answer from here (`nc -z HOST PORT`), "
        "and does each node list the other one in `peers`? Both logs have more."},
    /*kTwoDaemons*/
    {"The daemon whose link came up first keeps it; the other one is refused.",
     "Set another `node` in the configuration of one of them (without the key it is the host name), list that "
     "name in the others' `peers`, and restart that daemon."},
    /*kOwnPause*/
    {"The daemon of this node did not run for a while, and its peers counted it as lost.",
     "Find what stopped it here: SIGSTOP, a debugger, a frozen cgroup or virtual machine, or no processor time "
     "(`journalctl -k`, `systemd-cgtop`)."},
    /*kTls*/
    {"One of the two daemons has mutual TLS and the other one plain text.",
     "Give both the same tls.mode (docs/tls.md): `railsctl status` shows it as `peer TLS`. Restart the daemon "
     "whose file was changed."},
    /*kCertificateName*/
    {"A daemon may use only the names in its certificate.",
     "`openssl x509 -noout -ext subjectAltName -in CERTIFICATE` shows them: issue one for the daemon's node, or "
     "correct `node` there."},
    /*kCertificate*/
    {"One end does not accept the certificate of the other one.",
     "`openssl verify -CAfile CA CERTIFICATE` with the files of `tls`, each node's certificate against the other's "
     "`ca`; also its dates, and the clocks. Daemons read corrected files while they run."},
    /*kName*/
    {"`peers` has this address under another name than the node there has.",
     "Correct the name or the address in peers.static, then `railsctl reload`; `railsctl status` shows how a "
     "node calls itself."},
    /*kNotListed*/
    {"A daemon accepts only the peers that its configuration lists.",
     "Look whether each of the two nodes lists the other one in `peers`; `railsctl reload` applies a change."},
    /*kVersion*/
    {"The two daemons speak different versions of their protocol, or something else listens there.",
     "Install one version of railsd on both nodes (`railsd --version`) and restart the older daemon."},
    /*kSettings*/
    {"Settings differ that must be alike on both nodes.",
     "Correct what the reason names in the two configurations, and restart the daemon whose file was changed."},
    /*kLookup*/
    {"The host name of its control address has no address here.",
     "`getent ahosts NAME`; correct the name in peers.static, in DNS or in /etc/hosts."},
    /*kRefused*/
    {"Its machine answers, but no daemon listens at this address.",
     "Is railsd running there (`systemctl status railsd`), and is its control.listen the address that `peers` "
     "has here?"},
    /*kNotReached*/
    {"Its control address does not answer.",
     "`nc -z HOST PORT` from here: if it does not connect, a firewall, a route, a cable, or its machine is down; if it "
     "does, the daemon there hangs."},
    /*kNoAnswer*/
    {"Its machine accepts connections, but its daemon does not answer.",
     "`railsctl health` and `journalctl -u railsd` there: the daemon hangs, was stopped, or gets no processor "
     "time."},
    /*kEnded*/
    {"The other end has closed the connection; it is dialled again.",
     "`systemctl status railsd` and `journalctl -u railsd` there: its log has the reason."},
};

static_assert(std::size(kHints) == static_cast<size_t>(PeerCause::kEnded) + 1);

}  // namespace

PeerCause CauseOf(absl::string_view why) {
  for (const Phrase& phrase : kPhrases) {
    if (absl::StrContains(why, phrase.text)) return phrase.cause;
  }
  return PeerCause::kUnknown;
}

const PeerHint& HintOf(PeerCause cause) { return kHints[static_cast<size_t>(cause)]; }

}  // namespace rails::ctl::doctor

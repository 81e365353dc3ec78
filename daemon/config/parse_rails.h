// Sections `rails` and `verbs` of the configuration. Private to daemon/config.
#ifndef RAILSD_DAEMON_CONFIG_PARSE_RAILS_H_
#define RAILSD_DAEMON_CONFIG_PARSE_RAILS_H_

#include "daemon/config/config.h"
#include "daemon/config/yaml_reader.h"

namespace railsd {

void ReadRails(const YamlReader& in, Config* config);
void ReadVerbs(const YamlReader& in, VerbsTuning* verbs);

}  // namespace railsd

#endif  // RAILSD_DAEMON_CONFIG_PARSE_RAILS_H_

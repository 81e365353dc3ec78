#include "tests/model/exchange/state.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/model/exchange/options.h"

namespace model::exchange {

void RemovePosted(Share* share, int at) {
  for (int i = at + 1; i < kMaxPosted; ++i) share->posted[i - 1] = share->posted[i];
  share->posted[kMaxPosted - 1] = 0;
  --share->posted_count;
}

void ClearPosted(Share* share) {
  share->posted_count = 0;
  share->landed = 0;
  std::memset(share->posted, 0, sizeof share->posted);
}

void Post(Share* share, Byte item) {
  if (share->posted_count == kMaxPosted) Die("posts");
  share->posted[share->posted_count++] = item;
}

void PushCommand(Share* share, Command command) {
  if (share->command_count == kMaxCommands) Die("commands");
  share->commands[share->command_count++] = command;
}

void PopCommand(Share* share) {
  for (int i = 1; i < kMaxCommands; ++i) share->commands[i - 1] = share->commands[i];
  share->commands[kMaxCommands - 1] = {};
  --share->command_count;
}

void Send(Queue* queue, const Message& message) {
  if (queue->count == kMaxMessages) Die("messages");
  queue->messages[queue->count++] = message;
}

void Take(Queue* queue) {
  for (int i = 1; i < kMaxMessages; ++i) queue->messages[i - 1] = queue->messages[i];
  queue->messages[kMaxMessages - 1] = {};
  --queue->count;
}

void Die(const char* what) {
  std::fprintf(stderr, "the model is too small: %s\n", what);
  std::exit(2);
}

std::string Format(const char* format, ...) {
  char text[300];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

std::string ChunkNames(int chunks) {
  std::string text = "{";
  for (int chunk = 0; chunk < 8; ++chunk) {
    if (Has(chunks, chunk)) text += static_cast<char>('a' + chunk);
  }
  return text + "}";
}

std::string ConnectionName(const State& state, int index) {
  if (index < options.rails) return Format("rail %d", index);
  return Format("rail %d (new generation)", state.connections[index].rail);
}

std::string ConnectionNames(const State& state, int mask) {
  std::string text = "{";
  for (int index = 0; index < kMaxConnections; ++index) {
    if (Has(mask, index)) text += (text.size() > 1 ? ", " : "") + ConnectionName(state, index);
  }
  return text + "}";
}

std::string ExchangeNames(int mask) {
  std::string text;
  for (int index = 0; index < kExchanges; ++index) {
    if (Has(mask, index)) text += (text.empty() ? "" : " and ") + Format("exchange %c", 'X' + index);
  }
  return text;
}

std::string ItemName(Byte item) {
  if (!IsFence(item)) return Format("chunk %c", 'a' + item);
  return Format("the fence of round %d with weight %d", RoundOf(item), WeightOf(item));
}

}  // namespace model::exchange

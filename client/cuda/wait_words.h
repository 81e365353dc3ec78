// Words in the host's memory for which streams wait.
#ifndef RAILS_CLIENT_CUDA_WAIT_WORDS_H_
#define RAILS_CLIENT_CUDA_WAIT_WORDS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/cuda/driver.h"

namespace rails::cuda {

// A word only grows. Whoever takes it gets the next value, and sets the word to that value once. A stream that waits
// for the value goes on then, or at once if it comes later, also when others have taken the word meanwhile.
// Thread-safe.
class WaitWords {
 public:
  struct Word {
    uint32_t index = 0, value = 0;
  };
  static constexpr uint32_t kCount = 8192;  // for the unfinished jobs of 128 groups

  // In the current context. UNIMPLEMENTED: the driver has no such waits.
  static absl::StatusOr<std::unique_ptr<WaitWords>> Make(const Driver& driver);
  // A stream may come to its wait at any later time, so the words stay until the process ends.
  ~WaitWords() = default;

  // Takes a word; none if all are taken.
  std::optional<Word> Take() ABSL_LOCKS_EXCLUDED(mutex_);
  void Give(const Word& word) ABSL_LOCKS_EXCLUDED(mutex_);
  void Set(const Word& word) { std::atomic_ref(words_[word.index]).store(word.value, std::memory_order_release); }
  // Lets `stream`, of the current context, wait.
  absl::Status Wait(const Word& word, Stream stream) const;

 private:
  WaitWords(const Driver& driver, uint32_t* words, Address address);

  const Driver& driver_;
  uint32_t* const words_;
  const Address address_;  // of the words, for the device
  absl::Mutex mutex_;
  std::vector<uint32_t> free_ ABSL_GUARDED_BY(mutex_);
  std::array<uint32_t, kCount> last_ ABSL_GUARDED_BY(mutex_) = {};  // value of the last taker
};

}  // namespace rails::cuda

#endif  // RAILS_CLIENT_CUDA_WAIT_WORDS_H_

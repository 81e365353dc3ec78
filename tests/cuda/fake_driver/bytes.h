// Accesses to the bytes that operations move. Races between operations are the history's to find, so ThreadSanitizer
// does not see these accesses, except those to host memory: there it may find a host thread that does not wait.
#ifndef RAILS_TESTS_CUDA_FAKE_DRIVER_BYTES_H_
#define RAILS_TESTS_CUDA_FAKE_DRIVER_BYTES_H_

#include <cstddef>
#include <cstdint>

namespace fake_cuda {

void CopyBytes(unsigned char* to, bool to_host, const unsigned char* from, bool from_host, size_t bytes);
void SetBytes(unsigned char* to, bool to_host, unsigned char value, size_t bytes);
uint64_t HashBytes(const unsigned char* from, size_t bytes);
uint32_t LoadValue(const unsigned char* from);  // aligned

// A number that its arguments determine.
uint64_t Mix(uint64_t seed, uint64_t a, uint64_t b, uint64_t c);

}  // namespace fake_cuda

#endif  // RAILS_TESTS_CUDA_FAKE_DRIVER_BYTES_H_

// The bytes of an exchange: traffic matrices, steps of a mixture-of-experts model, their sources (a routing trace, a
// matrix in a file, a seeded generator), scaling, and spreading over ranks.
//
// All functions are pure, except those that read a file. They are thread-safe and never throw. Results are the same on
// every platform: generators and scaling use integers only.
#ifndef RAILS_WORKLOAD_WORKLOAD_H_
#define RAILS_WORKLOAD_WORKLOAD_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace rails::workload {

// Most bytes of one step from generators and scaling.
inline constexpr uint64_t kMostBytesInAll = uint64_t{1} << 62;

// Bytes from each source (row) to each destination (column). The ends are nodes or ranks, depending on the context. The
// diagonal stays at its end. In every matrix that this library returns, the sum of all cells fits in 63 bits.
class TrafficMatrix {
 public:
  TrafficMatrix() = default;
  explicit TrafficMatrix(size_t size) : size_(size), cells_(size * size, 0) {}

  size_t size() const { return size_; }
  uint64_t& at(size_t source, size_t destination) { return cells_[source * size_ + destination]; }
  uint64_t at(size_t source, size_t destination) const { return cells_[source * size_ + destination]; }

  absl::Span<const uint64_t> Row(size_t source) const { return absl::MakeConstSpan(&cells_[source * size_], size_); }
  uint64_t RowSum(size_t source) const;
  uint64_t ColumnSum(size_t destination) const;
  uint64_t Total() const;
  // The matrix of the opposite direction.
  TrafficMatrix Transposed() const;

  friend bool operator==(const TrafficMatrix&, const TrafficMatrix&) = default;

 private:
  size_t size_ = 0;
  std::vector<uint64_t> cells_;
};

// One layer of one iteration: tokens are dispatched to their experts, then the results are combined.
struct Step {
  std::string model = {};  // the trace's model, the generator's name, or "matrix"
  uint32_t layer = 0;
  uint32_t iteration = 0;
  TrafficMatrix dispatch = {};
  TrafficMatrix Combine() const { return dispatch.Transposed(); }
};

// Limits for hostile or wrong input. INVALID_ARGUMENT names an exceeded limit.
struct ReadLimits {
  uint64_t file_bytes = 64ull << 20;      // as stored
  uint64_t content_bytes = 256ull << 20;  // after decompression
  uint64_t rows = 4'000'000;              // of a trace
  uint64_t line_bytes = 1 << 20;
  uint32_t matrix_size = 2048;           // ends of a matrix
  uint32_t ranks = 65'536;               // of a trace
  uint64_t cell_bytes = 1ull << 50;      // of a matrix
  uint64_t cell_tokens = 1'000'000'000;  // of a row of a trace
};

// --- A routing trace -------------------------------------------------------------------------------------------------
// CSV with the header `rank,model,layer,iter,tokens` (columns in any order, others ignored), plain or gzip: token
// copies that each rank's experts received. Every (model, layer, iter) must have each rank exactly once.
//
// Node = rank / ranks_per_node. The trace was taken with the exchange inside a node. To make it an exchange between
// nodes, expert bin f is put on node f: node k sends to node f the tokens of its ranks r with r mod nodes = f.
// Therefore ranks_per_node must be a multiple of the number of nodes.

struct TraceOptions {
  uint32_t ranks_per_node = 8;      // in the trace
  uint64_t bytes_per_token = 8192;  // hidden size 4096 in bf16
  std::string model = {};           // only this model; empty: all. NOT_FOUND lists the models of the trace
  size_t max_steps = 0;             // only so many first steps; 0: all
  ReadLimits limits = {};
};

struct Trace {
  std::vector<Step> steps;  // by model in order of appearance, iteration, layer; ends are nodes
  size_t nodes = 0;
  uint64_t rows = 0;
};

// NOT_FOUND, PERMISSION_DENIED: from the file system. INVALID_ARGUMENT names file, line, column and value.
absl::StatusOr<Trace> ReadTrace(const std::string& path, const TraceOptions& options);
absl::StatusOr<Trace> ParseTrace(std::string_view content, std::string_view name, const TraceOptions& options);

// --- A traffic matrix ------------------------------------------------------------------------------------------------
// Bytes, one row per source: numbers separated by commas, semicolons or blanks, `#` starts a comment; or JSON, an array
// of arrays or an object with such an array under "matrix". Plain or gzip. A fraction of a byte is rounded to nearest.

// INVALID_ARGUMENT, with row and column from 1: the matrix is empty or not square, or a cell
// is no number, negative, not finite or over the limit.
absl::StatusOr<TrafficMatrix> ParseMatrix(std::string_view content, std::string_view name,
                                          const ReadLimits& limits = {});

// Reads either of the two; the header of a trace tells them apart. A matrix gives one step named "matrix".
absl::StatusOr<Trace> ReadTraceOrMatrix(const std::string& path, const TraceOptions& options);

// --- Generators ------------------------------------------------------------------------------------------------------

enum class Generator : uint8_t {
  kMixtral,      // skew of destinations and variation between sources drawn from Mixtral-8x7B's routing
  kUniform,      // the same to every end
  kZipf,         // popularity of destinations falls as 1 / place^exponent; places are shuffled for every step
  kSparse,       // each pair of different ends exchanges with a given probability, with random volumes
  kPermutation,  // every end sends all bytes to one other end, each to a different one
  kIncast,       // all send to one
};
inline constexpr Generator kAllGenerators[] = {Generator::kMixtral, Generator::kUniform,     Generator::kZipf,
                                               Generator::kSparse,  Generator::kPermutation, Generator::kIncast};
std::string_view GeneratorName(Generator generator);              // "mixtral", "uniform", ...
absl::StatusOr<Generator> ParseGenerator(std::string_view name);  // INVALID_ARGUMENT lists the names

struct GeneratorOptions {
  Generator generator = Generator::kMixtral;
  size_t size = 4;  // ends: nodes (or ranks; SpreadToRanks() makes ranks of nodes)
  size_t steps = 1;
  uint64_t seed = 1;
  uint64_t bytes_per_source = 2ull << 30;  // of one dispatch, with bytes that stay at their end; exact except
  // for sparse (on average) and incast (the target sends nothing)
  std::string mixtral_model = "mixtral-8x7b-e8k2";  // or mixtral-8x7b-e16k4
  double zipf_exponent = 1.2;                       // 0 to 8
  double sparse_fraction = 0.25;                    // probability that a pair exchanges, above 0 and at most 1
};

// The same options give the same steps everywhere. Step i is iteration i, layer 0.
// INVALID_ARGUMENT names the option and its value.
absl::StatusOr<std::vector<Step>> Generate(const GeneratorOptions& options);

// --- Scaling and spreading -------------------------------------------------------------------------------------------

// Scales all steps by one factor, so that a rank sends `bytes_per_rank` on average in the step with the most bytes (in
// every step of a model whose steps are equally large). An end of the matrices stands for `ranks_per_end` ranks. Row
// sums are exact to one byte. Returns the factor. INVALID_ARGUMENT: all steps are empty, or the result does not fit.
absl::StatusOr<double> ScaleToBytesPerRank(uint64_t bytes_per_rank, uint32_t ranks_per_end, std::vector<Step>* steps);

enum class Spread : uint8_t {
  kEven,    // every pair of ranks of a pair of nodes gets the same, to one byte
  kSkewed,  // destination ranks differ like experts, and source ranks vary about that, drawn from the seed
};

// Spreads nodes over ranks: node k becomes the ranks from k * ranks_per_node on. Every cell of `nodes`, also on the
// diagonal, equals the sum of its ranks' cells exactly.
// INVALID_ARGUMENT: ranks_per_node is 0, or the result has more than 8,192 ends.
absl::StatusOr<TrafficMatrix> SpreadToRanks(const TrafficMatrix& nodes, uint32_t ranks_per_node,
                                            Spread spread = Spread::kEven, uint64_t seed = 1);

}  // namespace rails::workload

#endif  // RAILS_WORKLOAD_WORKLOAD_H_

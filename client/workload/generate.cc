// Draws workloads from a seed. Uses integers only, so that every platform draws the same.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "client/workload/content.h"
#include "client/workload/random.h"

namespace rails::workload {
namespace {

constexpr uint64_t kMostCells = uint64_t{1} << 25;  // in all steps: 256 MiB
constexpr uint64_t kOne = uint64_t{1} << 32;        // fixed point of the Zipf weights

// Quantiles of the most loaded end over the mean, in all layers and iterations of the trace, in 65536ths.
struct Quantile {
  uint64_t share;  // percent
  uint64_t value;
};
constexpr std::array<Quantile, 7> kSkew8 = {
    {{0, 71754}, {5, 77782}, {25, 88392}, {50, 94702}, {75, 106240}, {95, 128546}, {100, 143864}}};
constexpr std::array<Quantile, 7> kSkew16 = {
    {{0, 67291}, {5, 75743}, {25, 87334}, {50, 102006}, {75, 120724}, {95, 155366}, {100, 183535}}};

// Square root of a fixed-point number with 62 fraction bits, in the same format, rounded down.
uint64_t Root62(uint64_t x) {
  const Uint128 wide = Uint128{x} << 62;
  uint64_t root = 0;
  for (int bit = 62; bit >= 0; --bit) {
    const uint64_t next = root | (uint64_t{1} << bit);
    if (Uint128{next} * next <= wide) root = next;
  }
  return root;
}

// log2 of a number of at least 1, with 32 fraction bits. Each squaring of the mantissa yields one bit.
uint64_t Log2(uint64_t x) {
  const int whole = std::bit_width(x) - 1;
  uint64_t mantissa = whole >= 31 ? x >> (whole - 31) : x << (31 - whole);
  uint64_t fraction = 0;
  for (int bit = 31; bit >= 0; --bit) {
    mantissa = (mantissa * mantissa) >> 31;
    if (mantissa >> 32 == 0) continue;
    mantissa >>= 1;
    fraction |= uint64_t{1} << bit;
  }
  return (static_cast<uint64_t>(whole) << 32) | fraction;
}

// 2^-x; argument and result have 32 fraction bits.
uint64_t PowerOfHalf(uint64_t x) {
  if (x >> 32 >= 62) return 0;
  uint64_t result = uint64_t{1} << 62;
  uint64_t factor = uint64_t{1} << 61;  // 2^-1, then 2^-1/2, 2^-1/4, ...
  for (int bit = 31; bit >= 0; --bit) {
    factor = Root62(factor);
    if ((x >> bit) & 1) result = static_cast<uint64_t>((Uint128{result} * factor) >> 62);
  }
  return (result >> (x >> 32)) >> 30;
}

// Weights 1 / place^exponent for the places 1 to size.
std::vector<uint64_t> ZipfWeights(size_t size, double exponent) {
  const uint64_t exponent_32 = static_cast<uint64_t>(std::llround(exponent * kOne));
  std::vector<uint64_t> weights(size);
  for (size_t i = 0; i < size; ++i) {
    weights[i] = PowerOfHalf(static_cast<uint64_t>((Uint128{Log2(i + 1)} * exponent_32) >> 32));
  }
  return weights;
}

void Shuffle(std::vector<uint64_t>* values, Random* random) {
  for (size_t i = values->size(); i > 1; --i) std::swap((*values)[i - 1], (*values)[random->Below(i)]);
}

void FillRow(size_t source, uint64_t bytes, const std::vector<uint64_t>& weights, std::vector<uint64_t>* parts,
             TrafficMatrix* matrix) {
  Split(bytes, weights, parts);
  for (size_t d = 0; d < weights.size(); ++d) matrix->at(source, d) = (*parts)[d];
}

int MixtralExperts(const GeneratorOptions& options) {
  if (options.mixtral_model == "mixtral-8x7b-e8k2") return 8;
  return options.mixtral_model == "mixtral-8x7b-e16k4" ? 16 : 0;
}

TrafficMatrix Mixtral(const GeneratorOptions& options, Random* random) {
  TrafficMatrix matrix(options.size);
  const std::vector<uint64_t> weights = DrawMixtralWeights(options.size, MixtralExperts(options), random);
  std::vector<uint64_t> varied(options.size);
  std::vector<uint64_t> parts;
  for (size_t s = 0; s < options.size; ++s) {
    for (size_t d = 0; d < options.size; ++d) varied[d] = VarySource(weights[d], random);
    FillRow(s, options.bytes_per_source, varied, &parts, &matrix);
  }
  return matrix;
}

TrafficMatrix SameForAll(const GeneratorOptions& options, const std::vector<uint64_t>& weights) {
  TrafficMatrix matrix(options.size);
  std::vector<uint64_t> parts;
  for (size_t s = 0; s < options.size; ++s) FillRow(s, options.bytes_per_source, weights, &parts, &matrix);
  return matrix;
}

TrafficMatrix Sparse(const GeneratorOptions& options, Random* random) {
  TrafficMatrix matrix(options.size);
  if (options.size == 1) {
    matrix.at(0, 0) = options.bytes_per_source;
    return matrix;
  }
  const uint64_t chance = std::max<uint64_t>(1, static_cast<uint64_t>(std::llround(options.sparse_fraction * kOne)));
  const Uint128 mean_wide = (Uint128{options.bytes_per_source} << 32) / (Uint128{chance} * (options.size - 1));
  const uint64_t mean =
      static_cast<uint64_t>(std::min<Uint128>(mean_wide, kMostBytesInAll / options.size / options.size));
  bool any = false;
  for (size_t s = 0; s < options.size; ++s) {
    for (size_t d = 0; d < options.size; ++d) {
      if (s == d || random->Below(kOne) >= chance) continue;
      matrix.at(s, d) = mean - mean / 2 + random->Below(mean / 2 * 2 + 1);
      any = true;
    }
  }
  if (!any) {
    // A step without bytes is useless: draws one pair.
    const size_t s = random->Below(options.size);
    matrix.at(s, (s + 1 + random->Below(options.size - 1)) % options.size) = mean;
  }
  return matrix;
}

// Sattolo's algorithm: the permutation is one cycle, so that no end sends to itself.
TrafficMatrix Permutation(const GeneratorOptions& options, Random* random) {
  std::vector<size_t> to(options.size);
  for (size_t i = 0; i < to.size(); ++i) to[i] = i;
  for (size_t i = to.size(); i-- > 1;) std::swap(to[i], to[random->Below(i)]);
  TrafficMatrix matrix(options.size);
  for (size_t s = 0; s < options.size; ++s) matrix.at(s, to[s]) = options.bytes_per_source;
  return matrix;
}

TrafficMatrix Incast(const GeneratorOptions& options, Random* random) {
  TrafficMatrix matrix(options.size);
  const size_t target = random->Below(options.size);
  for (size_t s = 0; s < options.size; ++s) {
    if (s != target || options.size == 1) matrix.at(s, target) = options.bytes_per_source;
  }
  return matrix;
}

absl::Status CheckOptions(const GeneratorOptions& options) {
  const auto error = [](const auto&... parts) { return absl::InvalidArgumentError(absl::StrCat(parts...)); };
  if (options.size == 0 || options.size > 2048) return error("size ", options.size, " is not between 1 and 2048");
  if (options.steps > kMostCells / (options.size * options.size)) {
    return error("steps ", options.steps, " of ", options.size, " x ", options.size, " cells are more than ",
                 kMostCells, " cells");
  }
  if (options.bytes_per_source == 0 || options.bytes_per_source > kMostBytesInAll / options.size) {
    return error("bytes_per_source ", options.bytes_per_source, " is not between 1 and ",
                 kMostBytesInAll / options.size);
  }
  if (options.generator == Generator::kMixtral && MixtralExperts(options) == 0) {
    return error("mixtral_model ", Quoted(options.mixtral_model), " is none of mixtral-8x7b-e8k2, mixtral-8x7b-e16k4");
  }
  if (!(options.zipf_exponent >= 0 && options.zipf_exponent <= 8)) {
    return error("zipf_exponent ", options.zipf_exponent, " is not between 0 and 8");
  }
  if (!(options.sparse_fraction > 0 && options.sparse_fraction <= 1)) {
    return error("sparse_fraction ", options.sparse_fraction, " is not above 0 and at most 1");
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t DrawMixtralSkew(int experts, Random* random) {
  const auto& quantiles = experts == 16 ? kSkew16 : kSkew8;
  const uint64_t draw = random->Below(100 * 65536);
  size_t i = 1;
  while (draw >= quantiles[i].share * 65536) ++i;
  const Quantile& low = quantiles[i - 1];
  const Quantile& high = quantiles[i];
  return low.value + (draw - low.share * 65536) * (high.value - low.value) / ((high.share - low.share) * 65536);
}

std::vector<uint64_t> DrawMixtralWeights(size_t size, int experts, Random* random) {
  constexpr int64_t kMean = 1 << 24;
  std::vector<uint64_t> weights(size, kMean);
  if (size == 1) return weights;
  const int64_t count = static_cast<int64_t>(size);
  const int64_t hot = std::min<int64_t>(static_cast<int64_t>(DrawMixtralSkew(experts, random)) << 8, kMean * count);
  const int64_t others = (kMean * count - hot) / (count - 1);
  // The other ends differ by a drawn amount; none is above the hot one or negative.
  const int64_t room = std::min(hot - others, others);
  const int64_t amplitude = room * static_cast<int64_t>(random->Below(1025)) / 1024;
  const size_t hot_place = random->Below(size);
  std::vector<int64_t> drawn(size, 0);
  int64_t sum = 0;
  for (size_t i = 0; i < size; ++i) {
    if (i == hot_place) continue;
    drawn[i] = static_cast<int64_t>(random->Below(65537));
    sum += drawn[i];
  }
  int64_t widest = 1;
  for (int64_t& value : drawn) {
    value -= sum / (count - 1);
    if (&value != &drawn[hot_place]) widest = std::max(widest, std::abs(value));
  }
  for (size_t i = 0; i < size; ++i) {
    weights[i] =
        static_cast<uint64_t>(i == hot_place ? hot : std::max<int64_t>(0, others + amplitude * drawn[i] / widest));
  }
  return weights;
}

uint64_t VarySource(uint64_t weight, Random* random) {
  // Uniform within 28 %. After rows are made equal, that matches the trace's 0.11 to 0.12 between four sources.
  constexpr uint64_t kPercent = 28;
  return weight * (1000 - 10 * kPercent + random->Below(20 * kPercent + 1)) / 1000;
}

std::string_view GeneratorName(Generator generator) {
  switch (generator) {
    case Generator::kMixtral:
      return "mixtral";
    case Generator::kUniform:
      return "uniform";
    case Generator::kZipf:
      return "zipf";
    case Generator::kSparse:
      return "sparse";
    case Generator::kPermutation:
      return "permutation";
    case Generator::kIncast:
      return "incast";
  }
  return "unknown";
}

absl::StatusOr<Generator> ParseGenerator(std::string_view name) {
  std::string names;
  for (const Generator generator : kAllGenerators) {
    if (name == GeneratorName(generator)) return generator;
    absl::StrAppend(&names, names.empty() ? "" : ", ", Abs(GeneratorName(generator)));
  }
  return absl::InvalidArgumentError(absl::StrCat("workload ", Quoted(Abs(name)), " is none of ", names));
}

absl::StatusOr<std::vector<Step>> Generate(const GeneratorOptions& options) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  Random random(options.seed);
  std::vector<uint64_t> weights(options.size, 1);
  if (options.generator == Generator::kZipf) weights = ZipfWeights(options.size, options.zipf_exponent);
  std::vector<Step> steps(options.steps);
  for (size_t i = 0; i < steps.size(); ++i) {
    Step& step = steps[i];
    step.model = std::string(GeneratorName(options.generator));
    step.iteration = static_cast<uint32_t>(i);
    switch (options.generator) {
      case Generator::kMixtral:
        step.dispatch = Mixtral(options, &random);
        break;
      case Generator::kUniform:
        step.dispatch = SameForAll(options, weights);
        break;
      case Generator::kZipf:
        Shuffle(&weights, &random);
        step.dispatch = SameForAll(options, weights);
        break;
      case Generator::kSparse:
        step.dispatch = Sparse(options, &random);
        break;
      case Generator::kPermutation:
        step.dispatch = Permutation(options, &random);
        break;
      case Generator::kIncast:
        step.dispatch = Incast(options, &random);
        break;
    }
  }
  return steps;
}

}  // namespace rails::workload

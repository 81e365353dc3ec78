// Reading traces and matrices: what they become, and what is said of bad ones.
#include <zlib.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "client/workload/workload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temporary_folder.h"

namespace rails::workload {
namespace {

using ::testing::HasSubstr;

using Folder = railsd::testing::TemporaryFolder;

std::string Gzip(const std::string& text) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

constexpr const char* kHeader = "rank,model,layer,iter,tokens\n";

// Two nodes of four ranks; rank r of (layer, iter) received 100 * layer + 10 * iter + r + 1.
std::string SmallTrace() {
  std::string text = kHeader;
  for (const char* model : {"b", "a"}) {
    for (int rank = 7; rank >= 0; --rank) {
      for (int layer = 0; layer < 2; ++layer) {
        for (int iter = 0; iter < 3; ++iter) {
          absl::StrAppend(&text, rank, ",", model, ",", layer, ",", iter, ",", 100 * layer + 10 * iter + rank + 1,
                          "\n");
        }
      }
    }
  }
  return text;
}

TraceOptions Small() { return {.ranks_per_node = 4, .bytes_per_token = 2}; }

void ExpectInvalid(const absl::Status& status, const std::string& text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

TEST(TraceTest, BinsGoToNodesAndStepsAreInOrder) {
  const auto trace = ParseTrace(SmallTrace(), "small.csv", Small());
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->nodes, 2u);
  EXPECT_EQ(trace->rows, 96u);
  ASSERT_EQ(trace->steps.size(), 12u);
  EXPECT_EQ(trace->steps[0].model, "b");
  EXPECT_EQ(trace->steps[6].model, "a");
  const Step& step = trace->steps[3];  // layers within iterations
  EXPECT_EQ(step.iteration, 1u);
  EXPECT_EQ(step.layer, 1u);
  // Node 0 to node 1: ranks 1 and 3 of node 0, 2 bytes a token.
  EXPECT_EQ(step.dispatch.at(0, 0), 2u * (111 + 113));
  EXPECT_EQ(step.dispatch.at(0, 1), 2u * (112 + 114));
  EXPECT_EQ(step.dispatch.at(1, 0), 2u * (115 + 117));
  EXPECT_EQ(step.Combine().at(0, 1), step.dispatch.at(1, 0));
}

TEST(TraceTest, ModelAndNumberOfStepsAreChosen) {
  TraceOptions options = Small();
  options.model = "a";
  options.max_steps = 4;
  const auto trace = ParseTrace(SmallTrace(), "small.csv", options);
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->steps.size(), 4u);
  EXPECT_EQ(trace->steps[0].model, "a");
  options.model = "c";
  const auto missing = ParseTrace(SmallTrace(), "small.csv", options).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("it has b, a"));
}

TEST(TraceTest, ColumnsInAnyOrderCrLfAndGzip) {
  const Folder folder;
  const std::string text = "tokens,note,iter,layer,model,rank\r\n5,x,0,0,m,0\r\n\r\n7,y,0,0,m,1\r\n";
  const TraceOptions options{.ranks_per_node = 2, .bytes_per_token = 1};
  const auto plain = ReadTraceOrMatrix(folder.Write("t.csv", text), options);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->steps[0].dispatch.at(0, 0), 12u);
  const auto zipped = ReadTrace(folder.Write("t.csv.gz", Gzip(text)), options);
  ASSERT_TRUE(zipped.ok()) << zipped.status();
  EXPECT_EQ(zipped->steps[0].dispatch, plain->steps[0].dispatch);
  // Members one after the other are one text.
  const auto members = ReadTrace(folder.Write("m.gz", Gzip(text.substr(0, 40)) + Gzip(text.substr(40))), options);
  ASSERT_TRUE(members.ok()) << members.status();
  EXPECT_EQ(members->steps[0].dispatch, plain->steps[0].dispatch);
}

TEST(TraceTest, MayBeginWithAByteOrderMark) {
  const Folder folder;
  const auto trace = ReadTraceOrMatrix(folder.Write("t.csv", "\xef\xbb\xbf" + SmallTrace()), Small());
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->rows, 96u);
}

TEST(TraceTest, BadTracesAreNamedByFileLineColumnAndValue) {
  const auto expect = [](const std::string& text, const std::string& message) {
    ExpectInvalid(ParseTrace(text, "t.csv", Small()).status(), message);
  };
  const std::string header = kHeader;
  expect("", "t.csv: is empty");
  expect(header, "t.csv: holds no row");
  expect("rank,model,layer,tokens\n", "line 1: the header \"rank,model,layer,tokens\" has no column iter");
  expect("rank,rank,model,layer,iter,tokens\n", "column rank is there twice");
  expect(header + "0,m,0,0\n", "line 2: 4 columns where the header has 5");
  expect(header + "0,m,0,0,-3\n", "t.csv: line 2, column 5 (tokens): \"-3\" is not a whole number");
  expect(header + "0,m,0,0,NaN\n", "\"NaN\" is not a whole number");
  expect(header + "0,m,0,0,1e5\n", "\"1e5\" is not a whole number");
  expect(header + "0,m,0,0,\n", "\"\" is not a whole number");
  expect(header + "0,m,0,0,1000000001\n", "\"1000000001\" is over the limit of 1000000000");
  expect(header + "0,m,0,0,99999999999999999999999\n", "is over the limit");
  expect(header + "65536,m,0,0,1\n", "line 2, column 1 (rank): \"65536\" is over the limit of 65535");
  expect(header + "0,,0,0,1\n", "column 2 (model): \"\" is empty");
  expect(header + "0,m,0,0,1\n", "has 1 ranks, which is no multiple of 4 ranks per node");
  expect(SmallTrace() + "3,a,0,0,5\n",
         "line 98, column 1 (rank): \"3\" of model a, layer 0, iter 0 is already on line");
  expect(SmallTrace() + "0,a,9,0,5\n", "model a, layer 9, iter 0 has no row for rank 1; the trace has 8 ranks");
  expect(SmallTrace() + "2,a,9,0,5\n", "has no row for rank 0");
  TraceOptions three = Small();
  three.ranks_per_node = 1;
  ExpectInvalid(ParseTrace(SmallTrace(), "t.csv", three).status(), "has 8 nodes of 1 ranks");
}

TEST(TraceTest, LimitsHold) {
  const Folder folder;
  TraceOptions options = Small();
  options.limits.rows = 10;
  ExpectInvalid(ParseTrace(SmallTrace(), "t", options).status(), "more rows than the limit of 10");
  options = Small();
  options.limits.line_bytes = 40;
  ExpectInvalid(ParseTrace(kHeader + std::string(41, ' '), "t", options).status(), "line 2 is longer");
  options = Small();
  options.limits.file_bytes = 100;
  ExpectInvalid(ReadTrace(folder.Write("t.csv", SmallTrace()), options).status(), "larger than the limit of 100 bytes");
  options = Small();
  options.limits.content_bytes = 1 << 20;
  const std::string bomb = Gzip(std::string(8 << 20, 'x'));
  EXPECT_LT(bomb.size(), 20'000u);
  ExpectInvalid(ReadTrace(folder.Write("bomb.gz", bomb), options).status(), "decompresses to more than the limit");
}

TEST(TraceTest, FilesThatCannotBeRead) {
  const Folder folder;
  EXPECT_EQ(ReadTrace(folder.path() + "/none.csv", {}).status().code(), absl::StatusCode::kNotFound);
  ExpectInvalid(ReadTrace(folder.path(), {}).status(), "cannot read");
  const std::string whole = Gzip(SmallTrace());
  ExpectInvalid(ReadTrace(folder.Write("cut.gz", whole.substr(0, whole.size() / 2)), {}).status(), "cut off gzip");
  std::string damaged = whole;
  damaged[damaged.size() - 6] ^= 1;  // the checksum
  ExpectInvalid(ReadTrace(folder.Write("damaged.gz", damaged), {}).status(), "gzip data");
}

// The real trace, where there is one: set the variable to its path.
TEST(TraceTest, MixtralTraceHasItsKnownFigures) {
  const char* path = std::getenv("RAILS_TEST_MIXTRAL_TRACE");
  if (path == nullptr) GTEST_SKIP() << "RAILS_TEST_MIXTRAL_TRACE is not set";
  const auto trace = ReadTrace(path, {});
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->rows, 33'280u);
  EXPECT_EQ(trace->nodes, 4u);
  EXPECT_EQ(trace->steps.size(), 320u + 720u);
  for (const Step& step : trace->steps) {
    const uint64_t tokens = step.model == "mixtral-8x7b-e8k2" ? 262'144 : 524'288;
    for (size_t node = 0; node < 4; ++node) EXPECT_EQ(step.dispatch.RowSum(node), tokens * 8192);
  }
}

TEST(MatrixTest, TextAndJsonAgree) {
  TrafficMatrix expected(2);
  expected.at(0, 1) = 20;
  expected.at(1, 0) = 1ull << 50;
  for (const char* text :
       {"0,20\n1125899906842624,0\n", "# bytes\n\n 0 20 # a\r\n1125899906842624\t0", "0;2e1\n1125899906842624 ; 0.4\n",
        "[[0,20],[1125899906842624,0]]", " {\"unit\":[[1]],\"matrix\":[[0,20.0],[1125899906842624,0]]}"}) {
    const auto matrix = ParseMatrix(text, "m");
    ASSERT_TRUE(matrix.ok()) << text << matrix.status();
    EXPECT_EQ(*matrix, expected) << text;
  }
}

TEST(MatrixTest, AMatrixIsOneStep) {
  const Folder folder;
  const auto trace = ReadTraceOrMatrix(folder.Write("m.json", "[[0, 7], [8, 0]]"), {});
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->steps.size(), 1u);
  EXPECT_EQ(trace->steps[0].model, "matrix");
  EXPECT_EQ(trace->nodes, 2u);
  EXPECT_EQ(trace->steps[0].dispatch.at(0, 1), 7u);
}

TEST(MatrixTest, BadMatricesAreNamedByRowAndColumn) {
  const auto expect = [](const std::string& text, const std::string& message) {
    ExpectInvalid(ParseMatrix(text, "m.txt").status(), message);
  };
  expect("", "m.txt: holds no matrix");
  expect("# nothing\n", "holds no matrix");
  expect("1 2\n3\n", "row 2 has 1 columns, the first row has 2");
  expect("1 2\n", "not square: 1 rows and 2 columns");
  expect("1 2\n3 4\n5 6\n", "not square: 3 rows and 2 columns");
  expect("1 nan\n3 4\n", "m.txt: row 1, column 2: \"nan\" is not a finite number of bytes (line 1)");
  expect("1 inf\n3 4\n", "is not a finite number");
  expect("\n1 2\n3 -4\n", "row 2, column 2: \"-4\" is negative (line 3)");
  expect("1,,2\n", "row 1, column 2: the cell is empty");
  expect("1 x\n", "\"x\" is not a number");
  expect("1e300 0\n0 0\n", "row 1, column 1: \"1e300\" is over the limit of 1125899906842624 bytes");
  expect("99999999999999999999 0\n0 0\n", "is over the limit");
  expect("[]", "holds no matrix");
  expect("[[]]", "row 1 has 0 columns");
  expect("[[1,2]]", "not square");
  expect("[[1,2],[3]]", "row 2 has 1 columns");
  expect("[[1,-2],[3,4]]", "row 1, column 2: \"-2\" is negative");
  expect("[[1,\"2\"],[3,4]]", "row 1, column 2: \"2\" is not a number");
  expect("[[1,null],[3,4]]", "row 1, column 2: null is not a number");
  expect("[[1,[2]],[3,4]]", "an array where a matrix is an array of arrays");
  expect("[1,2]", "a number where a matrix is an array of arrays");
  expect("[[1,1e999],[3,4]]", "not JSON at byte");
  expect("[[1,NaN],[3,4]]", "not JSON at byte 5");
  expect("[[1,2],[3,4]", "not JSON at byte");
  expect("{\"rows\":[[1]]}", "the object has no \"matrix\"");
  expect("{\"matrix\":5}", "a number where a matrix");
  expect("{\"matrix\":[[1]],\"matrix\":[[1]]}", "\"matrix\" is there twice");
  expect("{\"matrix\":{\"a\":1}}", "an object where a matrix");
  expect(std::string(100'000, '['), "an array");
}

TEST(MatrixTest, LimitsHold) {
  ReadLimits limits;
  limits.matrix_size = 2;
  ExpectInvalid(ParseMatrix("1 2 3\n", "m", limits).status(), "larger than the limit of 2 rows and columns");
  ExpectInvalid(ParseMatrix("[[1,2],[1,2],[1,2]]", "m", limits).status(), "row 3, column 1: the matrix is larger");
  limits = {};
  limits.cell_bytes = ~0ull >> 1;
  ExpectInvalid(ParseMatrix("4611686018427387904 1\n0 0\n", "m", limits).status(),
                "row 1, column 2: the sum of all cells is over the limit of 2^62 bytes");
  limits = {};
  limits.line_bytes = 3;
  ExpectInvalid(ParseMatrix("1 2 3\n", "m", limits).status(), "line 1 is longer than the limit of 3 bytes");
}

}  // namespace
}  // namespace rails::workload

#include "bench/plan.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/exit_code.hpp"

namespace tutti::tool {
namespace {

using Kind = ReduceOp::Kind;

Request request_for(const std::vector<const char*>& names) {
  Request request;
  for (const char* name : names) request.collectives.values.push_back(find_collective(name));
  request.dtypes.values = {DType::f32};
  request.ops.values = {Kind::sum};
  request.places.values = {PlaceMode::out};
  return request;
}

std::string refusal(const Request& request, int ranks) {
  try {
    make_plan(request, ranks);
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), Exit::usage);
    return failure.what();
  }
  return "";
}

TEST(Plan, AnExplicitSizeThatDoesNotDivideIsRefusedWithItsNeighbours) {
  Request request = request_for({"all_gather"});
  request.sizes = parse_sizes("1K");
  const std::string line = refusal(request, 3);
  for (const char* part : {"'1K'", "all_gather", "f32", "3 ranks", "12 bytes", "1020", "1032"})
    EXPECT_NE(line.find(part), std::string::npos) << part << ": " << line;
  request.sizes = parse_sizes("1032");
  EXPECT_EQ(make_plan(request, 3).blocks.front().bytes, std::vector<std::int64_t>{1032});
}

TEST(Plan, OnlyACollectiveThatCutsItsArrayNeedsAMultipleOfTheRanks) {
  Request request = request_for({"all_reduce"});
  request.sizes = parse_sizes("8");
  EXPECT_EQ(refusal(request, 3), "");
  request.sizes = parse_sizes("9");
  EXPECT_NE(refusal(request, 3).find("'9'"), std::string::npos);
}

/// README measures "8:64M" of all collectives on 4 ranks.
TEST(Plan, SizesOfARangeAreRoundedUp) {
  Request request = request_for({"all_reduce", "all_gather"});
  request.sizes = parse_sizes("8:64M");
  const Plan plan = make_plan(request, 4);
  ASSERT_EQ(plan.blocks.size(), 2U);
  EXPECT_EQ(plan.blocks[0].bytes.front(), 8);
  EXPECT_EQ(plan.blocks[1].bytes.front(), 16);
  EXPECT_EQ(plan.blocks[1].bytes.size(),
            plan.blocks[0].bytes.size() - 1);  // 8 and 16 are rounded to one size.

  request = request_for({"scatter"});
  request.sizes = parse_sizes("24:36:+1,48");
  EXPECT_EQ(make_plan(request, 2).blocks.front().bytes,
            (std::vector<std::int64_t>{24, 32, 40, 48}));
  request.sizes = parse_sizes("24:36:+1,47");
  EXPECT_NE(refusal(request, 2).find("'47'"), std::string::npos);
}

TEST(Plan, ASizeThatCannotBeRoundedUpDoesNotFit) {
  Request request = request_for({"all_gather"});
  request.sizes = parse_sizes("9223372036854775807:9223372036854775807");
  const std::string line = refusal(request, 3);
  EXPECT_NE(line.find("9223372036854775807"), std::string::npos) << line;
  EXPECT_NE(line.find("63 bits"), std::string::npos) << line;
}

TEST(Plan, TheDefaultSweepFitsEveryNumberOfRanks) {
  for (const int ranks : {1, 2, 3, 7, 64}) {
    Request request = request_for({"all_to_all"});
    request.dtypes.values = {DType::f64};
    const std::vector<std::int64_t> bytes = make_plan(request, ranks).blocks.front().bytes;
    ASSERT_GE(bytes.size(), 5U);
    for (const std::int64_t size : bytes) EXPECT_EQ(size % (8 * ranks), 0) << ranks;
    EXPECT_TRUE(std::is_sorted(bytes.begin(), bytes.end()));
  }
}

TEST(Plan, BitwiseOperationsOfFloatsAreRefusedWhenAskedForAndLeftOutOfAll) {
  Request request = request_for({"all_reduce"});
  request.ops = {{Kind::band}, false, true};
  EXPECT_NE(refusal(request, 2).find("band"), std::string::npos);
  EXPECT_NE(refusal(request, 2).find("f32"), std::string::npos);

  request.dtypes = {{DType::f32, DType::i32}, true, true};
  const Plan plan = make_plan(request, 2);
  ASSERT_EQ(plan.blocks.size(), 1U);
  EXPECT_EQ(plan.blocks.front().dtype, DType::i32);
  ASSERT_EQ(plan.notes.size(), 1U);
  EXPECT_NE(plan.notes.front().find("left out 1 combination"), std::string::npos);
}

TEST(Plan, BroadcastIsAlwaysInPlaceAndAllToAllNever) {
  Request request = request_for({"broadcast"});
  EXPECT_EQ(make_plan(request, 2).blocks.front().place, PlaceMode::in);
  request.places = {{PlaceMode::out}, false, true};
  EXPECT_NE(refusal(request, 2).find("broadcast"), std::string::npos);

  request = request_for({"all_to_all"});
  request.places = {{PlaceMode::in}, false, true};
  EXPECT_NE(refusal(request, 2).find("all_to_all"), std::string::npos);
  request.collectives.all = true;
  request.collectives.values.push_back(find_collective("scan"));
  const Plan plan = make_plan(request, 2);
  ASSERT_EQ(plan.blocks.size(), 1U);
  EXPECT_EQ(plan.blocks.front().collective->name, "scan");
}

TEST(Plan, AllRootsIsOneBlockPerRootOfTheRootedOnes) {
  Request request = request_for({"broadcast", "all_reduce"});
  request.all_roots = true;
  const Plan plan = make_plan(request, 3);
  ASSERT_EQ(plan.blocks.size(), 4U);
  EXPECT_EQ(plan.blocks[2].root, 2);
  EXPECT_FALSE(plan.blocks[3].root);
}

TEST(Plan, AnOptionWithoutUseIsRefused) {
  Request request = request_for({"broadcast"});
  request.ops.given = true;
  EXPECT_NE(refusal(request, 2).find("--op"), std::string::npos);
  request = request_for({"all_reduce"});
  request.root = 0;
  EXPECT_NE(refusal(request, 2).find("--root"), std::string::npos);
  request = request_for({"barrier"});
  request.sizes = parse_sizes("8");
  EXPECT_NE(refusal(request, 2).find("--sizes"), std::string::npos);
  request = request_for({"reduce"});
  request.root = 2;
  EXPECT_NE(refusal(request, 2).find("--root 2"), std::string::npos);
}

TEST(Plan, RandomOrderHasTheSameSizesAndDependsOnTheSeed) {
  Request request = request_for({"all_reduce"});
  request.sizes = parse_sizes("8:8M");
  const auto by_size = make_plan(request, 2).blocks.front().bytes;
  request.order = Order::random;
  const auto first = make_plan(request, 2).blocks.front().bytes;
  request.seed = 1;
  const auto second = make_plan(request, 2).blocks.front().bytes;
  EXPECT_NE(first, by_size);
  EXPECT_NE(first, second);
  EXPECT_TRUE(std::is_permutation(first.begin(), first.end(), by_size.begin(), by_size.end()));
}

TEST(Plan, MoreMemoryThanFreeIsRefusedBeforeItIsTaken) {
  Request request = request_for({"all_reduce"});
  request.sizes = parse_sizes("1G");
  const Plan plan = make_plan(request, 2);
  EXPECT_NO_THROW(check_memory(plan, 2, 2, (std::int64_t{4} << 30) + 4096));
  EXPECT_THROW(check_memory(plan, 2, 2, std::int64_t{4} << 30), Failure);
}

TEST(Plan, UnevenBlocksNeedOnlyAMultipleOfTheDtype) {
  Request request = request_for({"all_gather"});
  request.sizes = parse_sizes("1K");
  request.counts = {{Counts::parse("linear")}, false, true};
  EXPECT_EQ(make_plan(request, 3).blocks.front().bytes, std::vector<std::int64_t>{1024});
  request.sizes = parse_sizes("1021");
  EXPECT_NE(refusal(request, 3).find("multiple of 4 bytes"), std::string::npos);
}

TEST(Plan, EachLayoutIsASweepAndOnlyOfWhatIsCutIntoBlocks) {
  Request request = request_for({"all_gather", "all_reduce"});
  request.counts = {{Counts::parse("even"), Counts::parse("one-only")}, false, true};
  const Plan plan = make_plan(request, 4);
  ASSERT_EQ(plan.blocks.size(), 3U);
  EXPECT_EQ(plan.blocks[0].key().counts, "even");
  EXPECT_EQ(plan.blocks[1].key().counts, "one-only");
  EXPECT_EQ(plan.blocks[2].key().counts, "");
  EXPECT_FALSE(plan.blocks[0].cell(4, 0, 64).uneven);
  const Cell cell = plan.blocks[1].cell(4, 2, 64);
  EXPECT_TRUE(cell.uneven);
  EXPECT_EQ(cell.block(), 16);
  EXPECT_EQ(cell.at(), 0);
}

TEST(Plan, CountsWithoutUseAreRefused) {
  Request request = request_for({"all_reduce", "barrier"});
  request.counts = {{Counts::parse("linear")}, false, true};
  EXPECT_NE(refusal(request, 2).find("--counts"), std::string::npos);
}

TEST(Plan, ALayoutThatSoManyRanksCannotHaveIsRefusedBeforeTheyStart) {
  Request request = request_for({"scatter"});
  request.counts = {{Counts::parse("one-empty")}, false, true};
  EXPECT_NE(refusal(request, 1).find("one-empty"), std::string::npos);
  EXPECT_EQ(refusal(request, 2), "");
}

TEST(Plan, TheFingerprintTellsLayoutsSizesAndOptionsApart) {
  const auto print = [](const char* counts, const char* sizes, DType dtype) {
    Request request = request_for({"all_gather"});
    request.counts = {{Counts::parse(counts)}, false, true};
    request.sizes = parse_sizes(sizes);
    request.dtypes.values = {dtype};
    return make_plan(request, 3).fingerprint(3);
  };
  const std::string one = print("linear", "48", DType::f32);
  EXPECT_EQ(one, print("linear", "48", DType::f32));
  EXPECT_NE(one, print("mild", "48", DType::f32));
  EXPECT_NE(one, print("linear", "96", DType::f32));
  EXPECT_NE(one, print("linear", "48", DType::i32));
}

/// The array of the rank that receives all blocks decides.
TEST(Plan, MemoryIsThatOfTheRankThatNeedsMost) {
  Request request = request_for({"all_to_all"});
  request.sizes = parse_sizes("1M");
  request.counts = {{Counts::parse("one-only")}, false, true};
  const Plan plan = make_plan(request, 4);  // Rank 2: 1 MiB out, 4 MiB in.
  EXPECT_NO_THROW(check_memory(plan, 4, 1, (std::int64_t{5} << 20) + 4096));
  EXPECT_THROW(check_memory(plan, 4, 1, std::int64_t{5} << 20), Failure);
}

TEST(Plan, WhatPaddingTakesIsCounted) {
  Request request = request_for({"all_gather_rows"});
  request.sizes = parse_sizes("1M");
  request.counts = {{Counts::parse("one-only")}, false, true};
  EXPECT_NO_THROW(check_memory(make_plan(request, 4), 4, 1, std::int64_t{3} << 20));
  request.collectives.values = {find_collective("all_gather_padded")};  // Rank 2 gives 1 MiB.
  EXPECT_THROW(check_memory(make_plan(request, 4), 4, 1, std::int64_t{5} << 20), Failure);
  EXPECT_NO_THROW(check_memory(make_plan(request, 4), 4, 1, std::int64_t{6} << 20));
}

double factor(const char* name, const char* counts, int ranks, int root = 0) {
  const Collective* collective = find_collective(name);
  Block block;
  block.collective = collective;
  block.root = root;
  if (collective->divides()) block.counts = Counts::parse(counts);
  return collective->factor.of(block.cell(ranks, 0, 4800));
}

/// The bus bandwidth factors as derived in docs/benchmarking.md.
TEST(Plan, FactorsAreThoseOfNcclTests) {
  EXPECT_DOUBLE_EQ(factor("all_reduce", "even", 4), 1.5);
  for (const char* name : {"all_gather", "all_gather_rows", "all_gather_padded", "reduce_scatter",
                           "all_to_all", "gather", "scatter"})
    EXPECT_DOUBLE_EQ(factor(name, "even", 4), 0.75) << name;
  for (const char* name : {"broadcast", "reduce", "scan", "exclusive_scan", "send_recv"})
    EXPECT_DOUBLE_EQ(factor(name, "even", 4), 1) << name;
}

TEST(Plan, FactorsOfUnevenBlocksAreTheShareThatMustCrossTheBusiestLink) {
  for (const char* name :
       {"all_gather", "all_gather_rows", "all_gather_padded", "reduce_scatter"}) {
    EXPECT_DOUBLE_EQ(factor(name, "linear", 4), 0.9) << name;  // Rank 0 has a tenth.
    EXPECT_DOUBLE_EQ(factor(name, "one-empty", 4), 1) << name;
    EXPECT_DOUBLE_EQ(factor(name, "one-only", 4), 1) << name;
  }
  for (const char* name : {"gather", "scatter"}) {
    EXPECT_DOUBLE_EQ(factor(name, "linear", 4, 0), 0.9) << name;
    EXPECT_DOUBLE_EQ(factor(name, "linear", 4, 3), 0.6) << name;
    EXPECT_DOUBLE_EQ(factor(name, "one-only", 4, 2), 0) << name;  // It has everything already.
  }
  EXPECT_DOUBLE_EQ(factor("all_to_all", "linear", 4), 1.2);   // 3 x 0.4 S come to rank 3.
  EXPECT_DOUBLE_EQ(factor("all_to_all", "one-only", 4), 3);   // S of every rank to rank 2.
  EXPECT_DOUBLE_EQ(factor("all_to_all", "one-empty", 4), 1);  // All of S leaves rank 2.
}

}  // namespace
}  // namespace tutti::tool

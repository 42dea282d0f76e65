#include "bench/table.hpp"

#include <gtest/gtest.h>

namespace tutti::tool {
namespace {

TEST(OutputTable, ATitleNamesWhatIsNotUsual) {
  Key key;
  key.coll = "all_gather";
  key.dtype = DType::f32;
  key.place = Place::out;
  key.counts = "even";
  EXPECT_EQ(title(key), "all_gather  f32  out-of-place");
  key.counts = "zipf:1.5";
  EXPECT_EQ(title(key), "all_gather  f32  out-of-place  counts zipf:1.5");
}

}  // namespace
}  // namespace tutti::tool

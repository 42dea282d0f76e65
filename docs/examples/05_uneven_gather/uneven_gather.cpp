// Three ranks with two, no and three rows gather them with each function of gather.hpp.

#include <array>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <tutti/tutti.hpp>

namespace {

/// Prints a name and rows of two numbers.
void print_rows(const char* what, const tutti::ConstTensorView& array) {
  const auto v = array.values<float>();
  std::printf("%-28s", what);
  for (std::size_t i = 0; i + 1 < v.size(); i += 2)
    std::printf(" (%g %g)", static_cast<double>(v[i]), static_cast<double>(v[i + 1]));
  std::printf("\n");
}

void gather(tutti::ProcessGroup& group) {
  const bool first = group.rank() == 0;  // All ranks get the same; one prints it.
  const auto r = static_cast<float>(group.rank());

  // This rank's detections: boxes [n, 2] and a label for each. Rank 1 has none.
  const std::array<std::int64_t, 3> found{2, 0, 3};
  const std::int64_t n = found[static_cast<std::size_t>(group.rank())];
  std::vector<float> boxes;
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < n; ++i) {
    boxes.insert(boxes.end(), {r, static_cast<float>(i)});
    labels.push_back(10 * group.rank() + i);
  }
  const auto mine = tutti::view(boxes, {n, 2});

  // The ranks do not know each other's row counts; the result contains them.
  const tutti::GatheredRows all = tutti::all_gather_rows(group, mine);
  if (first) {
    std::printf("%-28s %s\n", "rows of each rank", to_string(all.rows).c_str());
    print_rows("all of them", all.data);
  }

  // With known rows no sizes are exchanged.
  const tutti::GatheredRows same = tutti::all_gather_rows(group, labels, all.rows);
  if (first) {
    std::printf("%-28s", "their labels");
    for (const std::int64_t label : same.data.values<std::int64_t>())
      std::printf(" %lld", static_cast<long long>(label));
    std::printf("\n");
  }

  // Several arrays at once: one list of row counts, and one message if they are small.
  const std::array<tutti::ConstTensorView, 2> arrays{mine, labels};
  const tutti::GatheredArrays both = tutti::all_gather_rows(group, std::span(arrays));
  if (first)
    std::printf("%-28s %s and %s\n", "boxes and labels at once",
                to_string(both.data[0].shape()).c_str(), to_string(both.data[1].shape()).c_str());

  // One block per rank: [3, 3, 2], padded with -1.
  const tutti::PaddedRows padded = tutti::all_gather_padded(group, mine, -1);
  if (first) print_rows("padded", padded.data);

  // Gathers on one rank, and scatters back: each rank receives its own rows.
  const tutti::GatheredRows at_two = tutti::gather_rows(group, mine, 2);
  const tutti::Tensor back = tutti::scatter_rows(group, at_two.data, at_two.rows, 2);
  if (first) print_rows("from rank 2 again", back);

  // The transpose of a gather: on every row, the sum of all ranks' votes.
  const std::vector<float> votes(static_cast<std::size_t>(all.rows.total()), r + 1);
  const tutti::Tensor sums = tutti::reduce_scatter_rows(group, votes, all.rows);
  if (first) {
    std::printf("%-28s", "votes for rank 0's rows");
    for (const float sum : sums.values<float>()) std::printf(" %g", static_cast<double>(sum));
    std::printf("\n");
  }

  // Every dimension may differ; the result is one array per rank.
  const std::vector<float> image(static_cast<std::size_t>((group.rank() + 1) * 2), r);
  const auto images = tutti::gather_all_tensors(group, tutti::view(image, {group.rank() + 1, 2}));
  const std::vector<std::string> names =
      tutti::all_gather_bytes(group, first               ? "a.png"
                                     : group.rank() == 1 ? ""
                                                         : "photo.jpeg");
  if (first)
    for (std::size_t i = 0; i < images.size(); ++i)
      std::printf("image of rank %zu               %s '%s'\n", i,
                  to_string(images[i].shape()).c_str(), names[i].c_str());

  // Rank 2 has rows of three numbers. All ranks get this error, and none a wrong array.
  const std::vector<float> odd(static_cast<std::size_t>(group.rank() == 2 ? 3 : 2));
  try {
    (void)tutti::all_gather_rows(group, tutti::view(odd, {1, std::ssize(odd)}));
  } catch (const tutti::Error& error) {
    if (first) std::printf("\n%s\n", error.what());
  }
}

}  // namespace

int main() {
  constexpr int size = 3;
  const auto store = tutti::make_memory_store();
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([=] {
      auto group = tutti::ProcessGroup::create(
          {.backend = "local", .store = store, .rank = rank, .size = size});
      gather(group);
    });
}

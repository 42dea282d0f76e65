#include "losses/features/tiles.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "losses/elements.hpp"
#include "losses/features/gemm.hpp"
#include "losses/parallel.hpp"

namespace tutti::internal::losses {

/// The memory of one thread.
template <typename T>
struct Tiles<T>::Scratch {
  AlignedArray<T> products{static_cast<std::size_t>(block_rows * block_columns)};
  AlignedArray<T> features;   // The gradient from one block.
  AlignedArray<double> sums;  // The gradient of the task's rows.
};

template <typename T>
Tiles<T>::Tiles(FeatureRows& rows, const tutti::losses::FeatureEngine& engine)
    : rows_(rows),
      engine_(engine),
      gemm_(engine.gemm != nullptr ? engine.gemm : eigen_product()),
      kernels_(feature_kernels<T>()) {}

template <typename T>
template <typename Run>
void Tiles<T>::over_tasks(const Run& run) {
  std::vector<Task> tasks;
  for (int side = 0; side < rows_.sides(); ++side) {
    const auto first = rows_.share(side).offset(rows_.rank());
    const auto last = first + rows_.share(side)[rows_.rank()];
    for (auto row = first; row < last; row += engine_.tile_rows)
      tasks.push_back({side, row, std::min(engine_.tile_rows, last - row)});
  }
  std::atomic<std::size_t> next{0};
  const auto threads = std::min(tasks.size(), static_cast<std::size_t>(engine_.threads));
  in_parallel(engine_.threads, threads, [&](std::size_t, std::size_t) {
    Scratch scratch;
    for (auto i = next++; i < tasks.size(); i = next++) run(tasks[i], scratch);
  });
}

/// Sets the products of a tile.
template <typename T>
void Tiles<T>::multiply(const Scratch& scratch, const Task& rows, Tile<T>& tile) const {
  const auto dims = rows_.dims();
  gemm_({.dtype = tutti::dtype_of<T>,
         .b_transposed = true,
         .m = static_cast<std::int64_t>(tile.block.rows),
         .n = tile.columns,
         .k = dims,
         .a = features(rows.side, tile.first_row),
         .b = features(other(rows.side), tile.first_column),
         .c = scratch.products.data(),
         .a_stride = dims,
         .b_stride = dims,
         .c_stride = block_columns});
  const auto columns_here = static_cast<std::size_t>(tile.columns);
  tile.block.columns = (columns_here + block_lanes - 1) / block_lanes * block_lanes;
  for (std::size_t i = 0; i < tile.block.rows; ++i)
    std::fill(tile.block.k + i * tile.block.stride + columns_here,
              tile.block.k + i * tile.block.stride + tile.block.columns, no_pair<T>);
  tile.for_own_pairs([&](std::int64_t row) { tile.at(row, row) = no_pair<T>; });
}

/// Calls use(tile) for each block of a task's rows with all columns, tile by tile.
template <typename T>
template <typename Use>
void Tiles<T>::over_blocks(const Task& task, const Scratch& scratch, const Use& use) const {
  for (std::int64_t begin = 0; begin < rows_.rows(); begin += engine_.tile_columns) {
    const auto last = std::min(rows_.rows(), begin + engine_.tile_columns);
    for (auto row = task.first; row < task.first + task.count; row += block_rows)
      for (auto column = begin; column < last; column += block_columns) {
        Tile<T> tile;
        tile.block.k = scratch.products.data();
        tile.block.rows =
            static_cast<std::size_t>(std::min(block_rows, task.first + task.count - row));
        tile.block.stride = static_cast<std::size_t>(block_columns);
        tile.side = task.side;
        tile.first_row = row;
        tile.first_column = column;
        tile.columns = std::min(block_columns, last - column);
        multiply(scratch, task, tile);
        use(tile);
      }
  }
}

template <typename T>
BySide Tiles<T>::log_sums(double scale, const TileFunction<T>& visit) {
  const std::size_t width = visit ? 2 : 1;
  std::array<std::vector<LogSum>, 2> sums;
  BySide more;
  for (std::size_t side = 0; side < static_cast<std::size_t>(rows_.sides()); ++side) {
    const auto count = static_cast<std::size_t>(rows_.share(static_cast<int>(side))[rows_.rank()]);
    sums[side].resize(count);
    if (visit) more[side].resize(count);
  }
  over_tasks([&](const Task& task, const Scratch& scratch) {
    const auto side = static_cast<std::size_t>(task.side);
    over_blocks(task, scratch, [&](Tile<T>& tile) {
      const auto at = in_share(task.side, tile.first_row);
      if (visit) {
        tile.more = more[side].data() + at;
        visit(tile);
      }
      kernels_.log_sum(tile.block, scale, sums[side].data() + at);
    });
  });
  BySide mine;
  for (std::size_t side = 0; side < 2; ++side) {
    mine[side].reserve(sums[side].size() * width);
    for (std::size_t i = 0; i < sums[side].size(); ++i) {
      const auto& [most, sum] = sums[side][i];
      mine[side].push_back(sum == 0 ? -std::numeric_limits<double>::infinity()
                                    : scale * most + std::log(sum));
      if (visit) mine[side].push_back(more[side][i]);
    }
  }
  return rows_.gather(std::move(mine), width);
}

template <typename T>
BySide Tiles<T>::sums_of_products() {
  const auto dims = static_cast<std::size_t>(rows_.dims());
  BySide totals;
  for (int side = 0; side < rows_.sides(); ++side) {
    auto& total = totals[static_cast<std::size_t>(other(side))];
    total.resize(dims);
    const auto* row = features(side, 0);
    for (std::int64_t j = 0; j < rows_.rows(); ++j, row += dims)
      for (std::size_t d = 0; d < dims; ++d) total[d] += static_cast<double>(row[d]);
  }
  BySide mine;
  for (int side = 0; side < rows_.sides(); ++side) {
    const auto s = static_cast<std::size_t>(side);
    const auto* row = features(side, rows_.share(side).offset(rows_.rank()));
    for (std::int64_t i = 0; i < rows_.share(side)[rows_.rank()]; ++i, row += dims) {
      double sum = 0;
      for (std::size_t d = 0; d < dims; ++d) sum += static_cast<double>(row[d]) * totals[s][d];
      mine[s].push_back(sum);
    }
  }
  return rows_.gather(std::move(mine), 1);
}

template <typename T>
GradientSums Tiles<T>::gradients(const GradientRules& rules, const TileFunction<T>& weigh) {
  const auto dims = static_cast<std::size_t>(rows_.dims());
  const auto sides = static_cast<std::size_t>(rows_.sides());
  const std::size_t width = rules.has_slopes ? 3 : 1;
  GradientSums result{.width = width};
  BySide mine;
  for (std::size_t side = 0; side < sides; ++side) {
    const auto rows = rows_.share(static_cast<int>(side))[rows_.rank()];
    mine[side].resize(static_cast<std::size_t>(rows) * width);
    result.features[side] = Tensor(host_memory(), {rows, rows_.dims()}, rows_.dtype());
  }
  over_tasks([&](const Task& task, Scratch& scratch) {
    const auto side = static_cast<std::size_t>(task.side);
    const auto begin = in_share(task.side, task.first);
    const auto count = static_cast<std::size_t>(task.count);
    if (scratch.features.data() == nullptr) {
      const auto most = static_cast<std::size_t>(std::min(
          engine_.tile_rows, std::max(rows_.share(0)[rows_.rank()], rows_.share(1)[rows_.rank()])));
      scratch.features = AlignedArray<T>(static_cast<std::size_t>(block_rows) * dims);
      scratch.sums = AlignedArray<double>(most * (dims + 2));
    }
    double* const sums = scratch.sums.data();
    double* const softplus = sums + count * dims;
    double* const slopes = softplus + count;
    std::fill_n(sums, count * (dims + 2), 0.0);
    double* const out_numbers = mine[side].data() + begin * width;
    const auto* own = features(task.side, task.first);
    over_blocks(task, scratch, [&](Tile<T>& tile) {
      const auto at = static_cast<std::size_t>(tile.first_row - task.first);
      tile.softplus = softplus + at;
      tile.slopes = slopes + at;
      weigh(tile);
      gemm_({.dtype = tutti::dtype_of<T>,
             .m = static_cast<std::int64_t>(tile.block.rows),
             .n = rows_.dims(),
             .k = tile.columns,
             .a = tile.block.k,
             .b = features(other(task.side), tile.first_column),
             .c = scratch.features.data(),
             .a_stride = block_columns,
             .b_stride = rows_.dims(),
             .c_stride = rows_.dims()});
      kernels_.add(sums + at * dims, scratch.features.data(), tile.block.rows * dims);
    });
    // The product of a row's features and gradient is the derivative by the scale.
    const double times = rules.times[side];
    for (std::size_t i = 0; i < count && times != 0; ++i) {
      double product = 0;
      for (std::size_t d = 0; d < dims; ++d)
        product += static_cast<double>(own[i * dims + d]) * sums[i * dims + d];
      out_numbers[i * width] = times * product;
      if (width == 3) out_numbers[i * width + 1] = times * slopes[i];
    }
    for (std::size_t i = 0; i < count && width == 3; ++i) out_numbers[i * width + 2] = softplus[i];
    with_type(rows_.dtype(), [&]<typename Out>(Out) {
      auto* out = static_cast<Out*>(result.features[side].data()) + begin * dims;
      for (std::size_t i = 0; i < count * dims; ++i)
        out[i] = from_double<Out>(rules.factor * sums[i]);
    });
  });

  result.of_rows = rows_.gather(std::move(mine), width);
  for (std::size_t side = 0; side < sides; ++side)
    for (std::size_t i = 0; i < result.of_rows[side].size(); i += width) {
      result.scale += result.of_rows[side][i];
      if (width == 3) result.bias += result.of_rows[side][i + 1];
    }
  for (std::size_t side = 0; side < sides; ++side)
    result.features[side] =
        rows_.gradient(static_cast<int>(side), std::move(result.features[side]));
  return result;
}

template class Tiles<float>;
template class Tiles<double>;

}  // namespace tutti::internal::losses

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <tutti/log.hpp>
#include <tutti/losses/ranking_loss.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] losses {

/// Phases are counted in epochs, or in steps once warmup_steps is set. The same on every rank.
struct WarmUpOptions {
  std::int64_t warmup_epochs = 0;              ///< 0: the main loss from the beginning.
  std::optional<std::int64_t> warmup_steps{};  ///< With warmup_epochs 0.
  std::int64_t blend_epochs = 0;               ///< 0: a hard switch.
  std::optional<std::int64_t> blend_steps{};   ///< With warmup_steps, and blend_epochs 0.
  double temp_start = 0.05;                    ///< Of the main loss, when its phase begins.
  double temp_end = 0.005;                     ///< From temp_decay_steps later on.
  std::int64_t temp_decay_steps = 10'000;
  double final_main_weight = 1;         ///< After the blend: above 0, 1 is the main loss alone.
  bool reset_queue_each_epoch = false;  ///< In the main phase.
  Logger logger{};                      ///< Empty: default_logger().
};

/// A loss to begin with, then a ranking loss: of scores that are noise, soft ranks teach little.
///
///     warm-up   the first loss
///     blend     (1 - w) first + w main; w = (k + 1) / (length + 1) final_main_weight, k from 0
///     then      the same with w = final_main_weight; the first loss is not asked if that is 1
///
/// Value and gradient are mixed alike, and both are those of the rows of all ranks: what the phases
/// weigh does not depend on how many there are. Give both losses the same GradScale.
///
/// In the main phase (blend included) the temperature of the main loss falls from temp_start to
/// temp_end by the same factor in every step. It begins, and the queue is emptied, at the first
/// start_step() of the phase; without a warm-up at step 0, and nothing is emptied.
///
///     for each epoch: start_epoch(epoch);          to count epochs, or for reset_queue_each_epoch
///       for each batch: start_step(step++);        the step of the whole training
///                       result = loss(group, {logits, targets});
///
/// Every rank gives the same epochs and steps: other phases, weights or temperatures than those of
/// the others are an Error mismatch. Where both are asked, two exchanges of a few words more than
/// theirs. The schedule is that of LossWarmupWrapper of imbalanced-losses 0.5.1. One call at a
/// time; otherwise thread rules are those of the group. Moved, not copied.
class WarmUp {
 public:
  using Options = WarmUpOptions;
  /// Collective where it has a group: over the rows of all ranks, as CrossEntropy is. It gets its
  /// arrays on the host, wherever the batch is, and gives its gradient there.
  using Loss = std::function<LossResult(ProcessGroup*, const RankingBatch&, const CallOptions&)>;

  /// @throws Error invalid_argument for an option out of range or that contradicts another, and
  ///         for a loss that is not there.
  WarmUp(Loss warm_up, std::unique_ptr<RankingLoss> main, const Options& options = {});
  const Options& options() const noexcept { return options_; }

  /// Counted from 0. @throws Error invalid_argument below that.
  void start_epoch(std::int64_t epoch);
  void start_step(std::int64_t step);

  /// Batches of evaluation get the same mix. A result of the main phase has each, valid of the main
  /// loss. Warns once when there was no start_step() and the phases count steps, or the main phase
  /// runs: the temperature stays.
  LossResult operator()(ProcessGroup* group, const RankingBatch& batch,
                        const CallOptions& call = {});

  bool in_warm_up() const noexcept;
  bool in_blend() const noexcept;
  double main_weight() const noexcept;  ///< w; 0 in the warm-up.
  double temperature() const noexcept { return main_->temperature(); }
  RankingLoss& main() noexcept { return *main_; }
  const RankingLoss& main() const noexcept { return *main_; }

  /// Collective: where the schedule is, and what RankingLoss::save() gives of the main loss; the
  /// same bytes on every rank. A first loss with state of its own is saved by whoever has it.
  std::string save(ProcessGroup* group, const CallOptions& call = {}) const;
  /// What save() gave, on any number of ranks; the same bytes on every rank. Options are not in
  /// it: what comes next follows this object's.
  /// @throws Error invalid_argument when it is not that, when it counts epochs and this steps, or
  ///         when RankingLoss::load() refuses it; then nothing is changed.
  void load(ProcessGroup* group, std::string_view state);

 private:
  enum class Switch : std::uint8_t { not_yet, at_next_step, done };
  /// What load() replaces.
  struct Schedule {
    std::int64_t epoch = 0;
    std::int64_t step = 0;
    Switch to_main = Switch::not_yet;
    std::int64_t switch_step = 0;  // Once it is done.
    bool stepped = false;          // start_step() was called.
  };

  LossResult mixed(ProcessGroup* group, const RankingBatch& batch, const CallOptions& call);
  bool counts_steps() const noexcept { return options_.warmup_steps.has_value(); }
  std::int64_t past_warm_up() const noexcept;
  std::int64_t blend_length() const noexcept;

  Loss warm_up_;
  std::unique_ptr<RankingLoss> main_;
  Options options_;
  Schedule schedule_;
  bool warned_ = false;
};

}  // namespace losses
}  // namespace tutti

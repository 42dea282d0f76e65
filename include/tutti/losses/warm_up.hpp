#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <tutti/log.hpp>
#include <tutti/losses/cross_entropy.hpp>
#include <tutti/losses/ranking_loss.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] losses {

/// The schedule. Phases are counted in epochs, or in steps if warmup_steps is set. The same on
/// every rank.
struct WarmUpOptions {
  std::int64_t warmup_epochs = 0;              ///< 0: the main loss from the beginning.
  std::optional<std::int64_t> warmup_steps{};  ///< Requires warmup_epochs 0.
  std::int64_t blend_epochs = 0;               ///< Length of the blend; 0: a hard switch.
  std::optional<std::int64_t> blend_steps{};   ///< Requires warmup_steps, and blend_epochs 0.
  double temp_start = 0.05;                    ///< Temperature at the start of the main phase.
  double temp_end = 0.005;  ///< Temperature after temp_decay_steps, and from then on.
  std::int64_t temp_decay_steps = 10'000;  ///< Above 0; counted from the start of the main phase.
  double final_main_weight = 1;  ///< Weight after the blend, above 0; 1: the main loss alone.
  bool reset_queue_each_epoch = false;  ///< Empties the queue at each epoch of the main phase.
  Logger logger{};                      ///< Empty: default_logger().
};

/// Runs a first loss, then a ranking loss, which trains poorly while scores are still noise.
///
///     warm-up   the first loss
///     blend     (1 - w) first + w main; w = (k + 1) / (length + 1) final_main_weight, k from 0
///     then      the same with w = final_main_weight; if that is 1, the first loss is not called
///
/// Value and gradient are mixed with the same weights. Both are over the rows of all ranks, so the
/// weights do not depend on the number of ranks. Give both losses the same GradScale.
///
/// In the main phase (blend included) the temperature of the main loss falls from temp_start to
/// temp_end by the same factor in every step. The fall begins, and the queue is emptied, at the
/// first start_step() of the phase. Without a warm-up it begins at step 0 and empties nothing.
///
///     for each epoch: start_epoch(epoch);          to count epochs, or for reset_queue_each_epoch
///       for each batch: start_step(step++);        the step of the whole training
///                       result = loss(group, {logits, targets});
///
/// Every rank passes the same epochs and steps; differing phases, weights or temperatures are an
/// Error mismatch. On the wire: the exchanges of the losses; if both run, two more exchanges of a
/// few words. The schedule is that of LossWarmupWrapper of imbalanced-losses 0.6.0. One call at a
/// time; otherwise thread rules are those of the group. Move-only.
class WarmUp {
 public:
  using Options = WarmUpOptions;  ///< Each loss has this name.
  /// The first loss as a function; with a group it is collective, over the rows of all ranks. A
  /// null group is one process: the group is a pointer here, because one stored function serves
  /// calls with a group and without. The function gets its arrays on the host, wherever the batch
  /// is, and returns its gradient there.
  using Loss = std::function<LossResult(ProcessGroup*, const Batch&, const CallOptions&)>;

  /// @throws Error invalid_argument for an option out of range or in conflict with another, and for
  ///         a null loss.
  WarmUp(Loss warm_up, std::unique_ptr<RankingLoss> main, const Options& options = {});
  WarmUp(const CrossEntropy& warm_up, std::unique_ptr<RankingLoss> main,
         const Options& options = {});
  const Options& options() const noexcept { return options_; }  ///< As given to the constructor.

  /// Epochs count from 0. @throws Error invalid_argument for a negative number.
  void start_epoch(std::int64_t epoch);
  /// Steps count from 0. @throws Error invalid_argument for a negative number.
  void start_step(std::int64_t step);

  /// Evaluations (Batch::training is false) get the same mix. In the main phase the result
  /// has per_class and status of the main loss. Logs one warning if start_step() was never called
  /// although phases count steps or the main phase runs: the temperature does not fall.
  /// @throws Error on every rank, with the codes of RankingLoss.
  LossResult operator()(ProcessGroup& group, const Batch& batch, const CallOptions& options = {}) {
    return compute(&group, batch, options);
  }
  /// One process, without a group.
  LossResult operator()(const Batch& batch) { return compute(nullptr, batch, {}); }

  bool in_warm_up() const noexcept;     ///< The first loss runs alone.
  bool in_blend() const noexcept;       ///< w still rises to final_main_weight.
  double main_weight() const noexcept;  ///< w; 0 in the warm-up.
  double temperature() const noexcept { return main_->temperature(); }  ///< Of main().
  RankingLoss& main() noexcept { return *main_; }  ///< The loss that runs after the warm-up.
  const RankingLoss& main() const noexcept { return *main_; }  ///< The same, read-only.

  /// Collective. Returns the position in the schedule and the main loss's save(): the same bytes on
  /// every rank. State of the first loss is not included.
  std::string save(ProcessGroup& group, const CallOptions& options = {}) const;
  std::string save() const;  ///< One process, without a group.
  /// Restores a state of save(). Takes the same bytes on every rank; the number of ranks may
  /// differ. The state holds no options: the schedule goes on with the options of this object.
  /// @throws Error invalid_argument for other bytes, for a state that counts epochs while this
  ///         object counts steps or the reverse, and if the main loss's load() refuses; then
  ///         nothing changes.
  void load(ProcessGroup& group, std::string_view state);
  void load(std::string_view state);  ///< One process, without a group.
  /// Collective: the main loss's set_group(), and the position in the schedule of rank 0.
  void set_group(ProcessGroup& group, const CallOptions& options = {});

 private:
  enum class Switch : std::uint8_t { not_yet, at_next_step, done };
  /// Replaced by load().
  struct Schedule {
    std::int64_t epoch = 0;
    std::int64_t step = 0;
    Switch to_main = Switch::not_yet;
    std::int64_t switch_step = 0;  // Set once to_main is `done`.
    bool stepped = false;          // start_step() was called.
  };

  LossResult compute(ProcessGroup* group, const Batch& batch, const CallOptions& options);
  std::string save_over(ProcessGroup* group, const CallOptions& options) const;
  void load_over(ProcessGroup* group, std::string_view state);
  LossResult main_loss(ProcessGroup* group, const Batch& batch, const CallOptions& options);
  LossResult mixed(ProcessGroup* group, const Batch& batch, const CallOptions& options);
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

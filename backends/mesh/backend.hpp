#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backend/backend_table.hpp>
#include <tutti/backend/host_backend.hpp>

#include "backend/mailbox.hpp"
#include "group.hpp"
#include "pairs.hpp"
#include "receives.hpp"
#include "values/scratch.hpp"

namespace tutti::backend::mesh {

class CallWire;

/// A group of host memory on a mesh. The collectives are those of lib/core/collectives.
class MeshBackend final : public HostBackend {
 public:
  MeshBackend(std::shared_ptr<const Group> group, Memory& memory);
  ~MeshBackend() override;

  bool supports(Operation operation, DType dtype, ReduceOp::Kind kind) const noexcept override {
    return operation == Operation::recv_any || HostBackend::supports(operation, dtype, kind);
  }
  bool reproduces() const noexcept override { return true; }
  Memory& memory() noexcept override { return memory_; }
  std::unique_ptr<Backend> split(const SplitInit& init) override;
  void abort(std::string_view why) noexcept override;
  std::optional<Error> failure() const override;
  std::string transport() const override { return mesh().transport(); }

 private:
  void run(std::span<const Op> ops, const Call& call) override;
  std::shared_ptr<WorkState> post_one(const Op& op, const Call& call, Deadline limit) override;
  void publish(std::span<const Op> ops, const Call& call, const Error& why) noexcept override;

  Mesh& mesh() const noexcept { return *group_->mesh; }
  bool alone_on_mesh() const noexcept { return group_->mesh.use_count() == 1; }
  std::shared_ptr<WorkState> post_pair(const Op& op, const Call& call, Deadline limit,
                                       std::string text);
  /// The description of a named message; empty for others.
  std::string text_of(const Op& op, const Call& call) const;
  void publish_message(const Op& op, const Call& call, const Error& why);
  void abandon_messages() noexcept;
  // Called through HostBackend::Calls::leave_parts.
  bool leave_parts(const Call& call, const Error& why) noexcept;

  Memory& memory_;
  std::shared_ptr<const Group> group_;
  internal::Scratch scratch_;
  std::list<CallWire> ended_parts_;  // Until leave_parts(): peers may still post their sides.
  std::shared_ptr<internal::Mailbox> to_itself_;
  std::mutex pairs_mutex_;
  std::vector<std::weak_ptr<PairState>> pairs_;  // Includes some that have ended.
  std::shared_ptr<WaiterThreads> waiter_threads_;
  std::shared_ptr<Receives> receives_;
  std::shared_ptr<const Mesh::Listener> listener_;
};

/// The group of all ranks of `init` on `mesh`.
std::shared_ptr<const Group> whole_group(const BackendInit& init, std::shared_ptr<Mesh> mesh);

/// A backend of whole_group().
std::unique_ptr<Backend> make_backend(const BackendInit& init, std::shared_ptr<Mesh> mesh);

}  // namespace tutti::backend::mesh

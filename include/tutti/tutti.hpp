#pragma once

#if __cplusplus < 202002L
#error "tutti needs C++20: compile with -std=c++20"
#endif

// Everything that users call: all but the adapters and tutti/backend/.
#include <tutti/autograd.hpp>
#include <tutti/call_options.hpp>
#include <tutti/cluster.hpp>
#include <tutti/coalesce.hpp>
#include <tutti/ddp/bucket.hpp>
#include <tutti/ddp/device_arithmetic.hpp>
#include <tutti/ddp/gradient_reducer.hpp>
#include <tutti/ddp/hooks.hpp>
#include <tutti/ddp/join.hpp>
#include <tutti/ddp/local_sgd.hpp>
#include <tutti/ddp/power_sgd.hpp>
#include <tutti/ddp/sharded_update.hpp>
#include <tutti/ddp/sparse_rows.hpp>
#include <tutti/deadline.hpp>
#include <tutti/device.hpp>
#include <tutti/dtype.hpp>
#include <tutti/error.hpp>
#include <tutti/gather.hpp>
#include <tutti/grad_scale.hpp>
#include <tutti/group_options.hpp>
#include <tutti/half.hpp>
#include <tutti/init.hpp>
#include <tutti/log.hpp>
#include <tutti/losses/clip.hpp>
#include <tutti/losses/cross_entropy.hpp>
#include <tutti/losses/features.hpp>
#include <tutti/losses/focal.hpp>
#include <tutti/losses/loss.hpp>
#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/losses/ranking_loss.hpp>
#include <tutti/losses/recall_at_quantile.hpp>
#include <tutti/losses/sharded_cross_entropy.hpp>
#include <tutti/losses/siglip.hpp>
#include <tutti/losses/smooth_ap.hpp>
#include <tutti/losses/squared_auc.hpp>
#include <tutti/losses/sup_con.hpp>
#include <tutti/losses/warm_up.hpp>
#include <tutti/maybe_owned.hpp>
#include <tutti/memory.hpp>
#include <tutti/metrics.hpp>
#include <tutti/operation.hpp>
#include <tutti/pending.hpp>
#include <tutti/prepared.hpp>
#include <tutti/process_group.hpp>
#include <tutti/reduce_op.hpp>
#include <tutti/registration.hpp>
#include <tutti/row_layout.hpp>
#include <tutti/rows.hpp>
#include <tutti/shape.hpp>
#include <tutti/store/store.hpp>
#include <tutti/store/store_server.hpp>
#include <tutti/sync.hpp>
#include <tutti/tensor.hpp>
#include <tutti/trace.hpp>
#include <tutti/trace_file.hpp>
#include <tutti/version.hpp>
#include <tutti/work.hpp>

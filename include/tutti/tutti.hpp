#pragma once

#if __cplusplus < 202002L
#error "tutti needs C++20: compile with -std=c++20"
#endif

// Collectives: what libtutti has for users. <tutti/training.hpp> has losses, metrics and
// data-parallel training.
#include <tutti/autograd.hpp>
#include <tutti/call_options.hpp>
#include <tutti/cluster.hpp>
#include <tutti/coalesce.hpp>
#include <tutti/deadline.hpp>
#include <tutti/device.hpp>
#include <tutti/dtype.hpp>
#include <tutti/error.hpp>
#include <tutti/format.hpp>
#include <tutti/gather.hpp>
#include <tutti/grad_scale.hpp>
#include <tutti/group_options.hpp>
#include <tutti/half.hpp>
#include <tutti/init.hpp>
#include <tutti/log.hpp>
#include <tutti/memory.hpp>
#include <tutti/operation.hpp>
#include <tutti/pending.hpp>
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

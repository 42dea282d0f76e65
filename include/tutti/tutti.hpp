#pragma once

// Everything except the adapters.
#include <tutti/backend.hpp>
#include <tutti/call_options.hpp>
#include <tutti/cluster.hpp>
#include <tutti/coalesce.hpp>
#include <tutti/deadline.hpp>
#include <tutti/device.hpp>
#include <tutti/dtype.hpp>
#include <tutti/error.hpp>
#include <tutti/gather.hpp>
#include <tutti/half.hpp>
#include <tutti/init.hpp>
#include <tutti/log.hpp>
#include <tutti/memory.hpp>
#include <tutti/process_group.hpp>
#include <tutti/reduce_op.hpp>
#include <tutti/row_layout.hpp>
#include <tutti/rows.hpp>
#include <tutti/shape.hpp>
#include <tutti/store.hpp>
#include <tutti/store_server.hpp>
#include <tutti/tensor.hpp>
#include <tutti/trace.hpp>
#include <tutti/value.hpp>
#include <tutti/version.hpp>
#include <tutti/work.hpp>

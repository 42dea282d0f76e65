#pragma once

// Losses, metrics and data-parallel training: what libtutti_training has, and all of libtutti.
#include <tutti/ddp/bucket.hpp>
#include <tutti/ddp/device_arithmetic.hpp>
#include <tutti/ddp/gradient_reducer.hpp>
#include <tutti/ddp/hooks.hpp>
#include <tutti/ddp/join.hpp>
#include <tutti/ddp/local_sgd.hpp>
#include <tutti/ddp/power_sgd.hpp>
#include <tutti/ddp/sharded_update.hpp>
#include <tutti/ddp/sparse_rows.hpp>
#include <tutti/losses/clip.hpp>
#include <tutti/losses/cross_entropy.hpp>
#include <tutti/losses/features.hpp>
#include <tutti/losses/focal.hpp>
#include <tutti/losses/loss.hpp>
#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/losses/ranking_loss.hpp>
#include <tutti/losses/recall_at_quantile.hpp>
#include <tutti/losses/siglip.hpp>
#include <tutti/losses/smooth_ap.hpp>
#include <tutti/losses/sup_con.hpp>
#include <tutti/losses/warm_up.hpp>
#include <tutti/metrics.hpp>
#include <tutti/tutti.hpp>

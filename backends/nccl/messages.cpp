#include "messages.hpp"

#include "values/fail.hpp"

namespace tutti::backend::nccl {

void Messages::add(const Op& op) {
  if (op.peer != context_.rank)
    others_.push_back(op);
  else if (op.kind == Operation::send)
    own_in_.push_back(op.in);
  else
    own_out_.push_back(op.out);
}

void Messages::copy_own() const {
  if (own_in_.size() != own_out_.size())
    internal::failf(Errc::mismatch, "this rank sends {} messages to itself and receives {}",
                    own_in_.size(), own_out_.size());
  for (std::size_t i = 0; i < own_in_.size(); ++i) {
    if (own_in_[i].bytes() != own_out_[i].bytes())
      internal::failf(Errc::mismatch, "this rank sends {} bytes to itself and receives {}",
                      own_in_[i].bytes(), own_out_[i].bytes());
    context_.copy(own_out_[i].data, own_in_[i].data, own_in_[i].bytes());
  }
}

void Messages::inside(ncclComm_t comm) const {
  for (const auto& op : others_)
    if (op.kind == Operation::send)
      context_.send(op.in.data, op.in.bytes(), op.peer, comm);
    else
      context_.recv(op.out.data, op.out.bytes(), op.peer, comm);
}

}  // namespace tutti::backend::nccl

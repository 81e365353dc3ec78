// CUipcMemHandle, a handle by which a process opens memory of another process's device.
#ifndef RAILS_CLIENT_CUDA_IPC_HANDLE_H_
#define RAILS_CLIENT_CUDA_IPC_HANDLE_H_

namespace rails::cuda {

struct IpcHandle {
  char bytes[64] = {};
};

}  // namespace rails::cuda

#endif  // RAILS_CLIENT_CUDA_IPC_HANDLE_H_

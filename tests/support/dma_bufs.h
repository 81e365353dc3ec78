// Memfds that pass for dma-bufs, where no device makes real ones.
#ifndef RAILSD_TESTS_SUPPORT_DMA_BUFS_H_
#define RAILSD_TESTS_SUPPORT_DMA_BUFS_H_

namespace railsd::testing {

// From now on fstatfs() reports the file of `fd` as a dma-buf to this program.
void PassForDmaBuf(int fd);

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_SUPPORT_DMA_BUFS_H_

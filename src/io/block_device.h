// What drive a file lies on.
#pragma once

namespace penstock {

// True when the file's drive is a hypervisor's (virtio, Xen, Hyper-V). Such drives are slow to reach memory that is
// scattered over many small pages, so bytes do better to pass through a few large ones. False when the drive can't be
// told.
bool on_virtual_drive(int fd);

}  // namespace penstock

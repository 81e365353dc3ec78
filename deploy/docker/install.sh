#!/bin/sh
# Installs railsd and railsctl from the packages in /mnt into the image, and leaves nothing else there that a running
# daemon does not need. The Dockerfile runs it once.
set -eu
export DEBIAN_FRONTEND=noninteractive

# Before apt: what dpkg leaves out need not be deleted.
cat > /etc/dpkg/dpkg.cfg.d/image <<'TEXT'
path-exclude=/usr/share/doc/*
path-include=/usr/share/doc/*/copyright
path-include=/usr/share/doc/railsd/*
path-exclude=/usr/share/man/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/locale/*
TEXT

# With these numbers whatever the packages would take: volumes and pods name them.
groupadd --gid 7471 railsd
groupadd --gid 7472 rails
groupadd --gid 7473 rails-operators
useradd --uid 7471 --gid railsd --groups rails,rails-operators --no-create-home --home-dir /nonexistent \
  --shell /usr/sbin/nologin railsd

ls /mnt/railsd_*.deb /mnt/railsctl_*.deb > /dev/null ||
  { echo "install.sh: build/packages has no railsd_*.deb and railsctl_*.deb; make them with ./dev package" >&2; exit 1; }
apt-get update
# The providers are the user-space drivers of RDMA devices.
apt-get install -y --no-install-recommends /mnt/*.deb ibverbs-providers libcap2-bin

# Lets the daemon, which is not root, lock memory where the container has IPC_LOCK. It raises the capability by
# itself; without IPC_LOCK, or with no-new-privileges, it starts all the same.
setcap cap_ipc_lock=p /usr/bin/railsd
install -d -o railsd -g rails -m 0755 /run/railsd

apt-get purge -y --auto-remove libcap2-bin
apt-get clean
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/cache/ldconfig/* /var/log/* /tmp/* \
  /usr/share/bash-completion
mkdir -p /usr/share/doc/railsd
# shellcheck disable=SC2016  # dpkg-query fills these in
dpkg-query -W -f='${Package} ${Version} ${Architecture}\n' > /usr/share/doc/railsd/packages.txt

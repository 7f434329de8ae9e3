#!/bin/sh
# cmake/ccache.sh CCACHE REPOSITORY COMPILER ARGUMENT...: compiles through ccache. Build trees and
# clones share objects, because the current directory is not hashed and paths below the repository are
# hashed as relative paths.
#
# ccache caches sources that use a precompiled header only with this CCACHE_SLOPPINESS, because such a
# header could change within one time stamp or use __TIME__. Neither happens here. The inode cache keeps
# the hashes of files by inode and time stamp: a precompiled header has 300 MB, and hundreds of sources
# use it.
ccache=$1
export CCACHE_BASEDIR="$2" CCACHE_NOHASHDIR=1 CCACHE_INODECACHE=1
export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
shift 2
# The preprocessor would read the previous version of a precompiled header, so ccache would hash that
# version and find nothing.
case " $* " in
  *" -x c++-header "*)
    for argument; do
      case $argument in *.gch) rm -f "$argument" ;; esac
    done
    ;;
esac
exec "$ccache" "$@"

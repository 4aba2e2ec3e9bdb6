"""Failures of the communication between processes."""

from __future__ import annotations

from .fault import Fault

COMMUNICATION = (
    Fault(
        "barrier-timeout",
        kind="symptom",
        title="A rank did not come to the barrier",
        cause="The named rank was somewhere else: in slow work, in other collectives, or gone.",
        fix="Look at that rank's log and stack (py-spy dump --pid PID).",
        signs=("failed to pass monitoredBarrier in", "timed out in monitoredBarrier after"),
        names=(
            "[Rank {rank:int}]: Rank {missing_rank:int} failed to pass monitoredBarrier in {milliseconds:int} ms",
            "[Rank {rank:int}]: Ranks {missing_rank:ranks} failed to pass monitoredBarrier in {milliseconds:int} ms",
        ),
    ),
    Fault(
        "collective-timeout",
        kind="symptom",
        title="A rank waited for another one until the timeout",
        cause="Another rank never came to the same collective: it failed, hangs or is busy elsewhere, got fewer"
        " batches, or skipped a step, a barrier, a checkpoint or a logged value that this rank took part in.",
        fix="Look for the rank that does not report this timeout, and at its last lines or its stack (py-spy dump)."
        " A longer timeout helps only where that rank does slow work.",
        signs=(
            "Watchdog caught collective operation timeout",
            "Timed out waiting {milliseconds:int}ms for recv operation to complete",
            "Timed out waiting {milliseconds:int}ms for send operation to complete",
            "wait timeout after {milliseconds:int}ms, keys:",
            "Exception (either an error or timeout) detected by watchdog at work",
            "ProcessGroupNCCL's watchdog got stuck for",
            "ProcessGroupNCCL's heartbeat monitor",
        ),
        names=(
            "Rank {rank:int}] Watchdog caught collective operation timeout",
            "Rank {rank:int}] Exception (either an error or timeout) detected",
            "WorkNCCL(SeqNum={sequence:int},",
            (
                "OpType={operation:word}, {...} Timeout(ms)={limit_milliseconds:int}) ran for {milliseconds:int}"
                " milliseconds before timing out"
            ),
            "last enqueued NCCL work: {last_enqueued:int}, last completed NCCL work: {last_completed:int}",
        ),
    ),
    Fault(
        "collectives-differ",
        title="The ranks are in different collectives",
        cause="Ranks took different paths: code under `if rank == 0` that communicates (saving a checkpoint,"
        " trainer.log_dir, a barrier), other metrics or another order of them, other numbers of batches.",
        fix="Let all ranks make the same calls in the same order; do only the writing itself on rank 0.",
        signs=(
            "Detected mismatch between collectives on ranks",
            "op.preamble.length <= op.nbytes",
            "Received data size doesn't match expected size. Is there a distributed collective mismatch",
        ),
        names=(
            "on ranks. Rank {rank:int} is running collective: CollectiveFingerPrint({...}OpType={operation:word}",
            "but Rank {other_rank:int} is running collective: CollectiveFingerPrint({...}OpType={other_operation:word}",
            "op.preamble.length <= op.nbytes. {received:int} vs {expected:int}.",
        ),
    ),
    Fault(
        "nccl-error",
        kind="symptom",
        title="NCCL failed",
        cause="Shared memory that is too small (containers), a network interface that does not reach the others, two"
        " ranks on one GPU, or a rank that died; NCCL's own warning says which.",
        fix="Run with NCCL_DEBUG=WARN and read the line before; give containers --ipc=host or a larger --shm-size;"
        " name the interface with NCCL_SOCKET_IFNAME.",
        signs=(
            "NCCL error in:",
            "ncclSystemError: System call",
            "ncclUnhandledCudaError: Call to CUDA function failed",
            "ncclInternalError: Internal check failed",
            "ncclInvalidUsage: This usually reflects invalid usage",
        ),
        names=(
            ", unhandled {error:word} error",
            "NCCL version {version:version}",
        ),
    ),
    Fault(
        "no-backend",
        title="A tensor is on a device that the process group does not serve",
        cause="NCCL carries only CUDA tensors, gloo mainly CPU tensors; a metric or tensor stayed on the other device,"
        " such as a torchmetrics object in a plain list or dict.",
        fix="Register metrics as attributes or in ModuleList / ModuleDict, move the tensor to the GPU, or initialise"
        " the group with backend='cpu:gloo,cuda:nccl'.",
        signs=(
            "No backend type associated with device type {device:word}",
            "Tensors must be CUDA and dense",
        ),
    ),
    Fault(
        "no-nccl",
        title="NCCL cannot work here",
        cause="There is no GPU on this machine, or this build of torch comes without NCCL.",
        fix="Use gloo: process_group_backend='gloo', or init_process_group('gloo').",
        signs=(
            "ProcessGroupNCCL is only supported with GPUs, no GPUs found",
            "Distributed package doesn't have NCCL built in",
            "Distributed package doesn't have NCCL module",
        ),
    ),
    Fault(
        "no-process-group",
        title="The process group does not exist yet",
        cause="A collective, DDP or SyncBatchNorm is used before init_process_group, or after its end, or by a script"
        " that was started without a launcher.",
        fix="Start with torchrun and call init_process_group first; guard with torch.distributed.is_initialized().",
        signs=(
            "Default process group has not been initialized",
            "Default process group is not initialized",
        ),
    ),
    Fault(
        "process-group-twice",
        title="The process group is made twice",
        cause="The script calls init_process_group where a library (Lightning, Accelerate) has done so already.",
        fix="Remove one of the two calls, or guard it with torch.distributed.is_initialized().",
        signs=("trying to initialize the default process group twice",),
    ),
    Fault(
        "master-unreachable",
        title="The rendezvous was not reached",
        cause="Rank 0 is not up, died early, or its address or port (MASTER_ADDR, MASTER_PORT, --rdzv-endpoint) is"
        " wrong or behind a firewall; or fewer processes came than were announced.",
        fix="Look at the log of rank 0; check from the other machine that host and port answer (nc -vz HOST PORT), and"
        " that every machine was started with the same --nnodes and endpoint.",
        signs=(
            "The client socket has timed out after",
            "TCP client failed to connect/validate to host {host:host}:{port:int} - timed out",
            "The client socket has failed to connect to any network address of",
            "Gloo connectFullMesh failed with",
            "rendezvous.api.RendezvousConnectionError:",
            "rendezvous.api.RendezvousTimeoutError",
        ),
        names=("while trying to connect to ({host:host}, {port:int})", "address of ({host:host}, {port:int})"),
    ),
    Fault(
        "connection-closed",
        kind="consequence",
        title="Another rank is gone",
        cause="The process at the other end has ended: it failed, was killed, or finished early with fewer batches.",
        fix="The failure is in the log of the rank that does not print this.",
        signs=(
            "Connection closed by peer [",
            "Read error [{address:text}]:{...}: Connection reset by peer",
            "writev [{address:text}]:{...}: Broken pipe",
            "DistNetworkError: Connection reset by peer",
            "DistNetworkError: Failed to recv, got 0 bytes",
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely",
            "Net : Connection closed by remote peer",
        ),
        names=("Connection closed by peer {address:address}",),
    ),
    Fault(
        "nccl-shutdown",
        kind="consequence",
        title="NCCL took the process down",
        cause="After a failed or late collective the results on the GPU are not to be trusted.",
        fix="Find what failed first; there is nothing to mend here.",
        signs=(
            "Some NCCL operations have failed or timed out",
            "To avoid data inconsistency, we are taking the entire process down",
            "NCCL communicator was aborted on rank",
            "terminate called after throwing an instance of 'c10::DistBackendError'",
            "Observed flight recorder dump signal from another rank",
        ),
        names=("Rank {rank:int}] Some NCCL operations", "NCCL communicator was aborted on rank {rank:int}"),
    ),
)

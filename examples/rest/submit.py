"""Submits a job by slurmrestd and follows it to its end: submit.py http://slurm-restapi:6820

The token is in the environment, as SLURM_JWT. `slurm_client` is generated from slurmrestd's OpenAPI description (docs/tokens.md).
"""

import os
import sys
import time

from slurm_client import AuthenticatedClient
from slurm_client.api.slurm import slurm_v0045_get_job, slurm_v0045_post_job_submit
from slurm_client.models import V0045JobDescMsg, V0045JobSubmitReq

UNFINISHED = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "STAGE_OUT", "SUSPENDED", "REQUEUED"}


def checked(answer):
    """Returns a response without errors, which slurmrestd reports in the response itself."""
    if answer.errors:
        sys.exit("; ".join(f"{error.error}: {error.description}" for error in answer.errors))
    return answer


def main():
    client = AuthenticatedClient(
        base_url=sys.argv[1], token=os.environ["SLURM_JWT"], auth_header_name="X-SLURM-USER-TOKEN", prefix=""
    )
    job = V0045JobDescMsg(
        name="from-python",
        partition="all",
        # Slurm requires both: it takes no environment from here, and the directory must exist on the worker.
        environment=["PATH=/usr/bin:/bin"],
        current_working_directory="/tmp",
        script="#!/bin/sh\nhostname\n",
    )
    submitted = checked(slurm_v0045_post_job_submit.sync(client=client, body=V0045JobSubmitReq(job=job)))
    while True:
        answer = checked(slurm_v0045_get_job.sync(str(submitted.job_id), client=client))
        states = {str(state) for state in answer.jobs[0].job_state}
        if not states & UNFINISHED:
            break
        time.sleep(1)
    print(submitted.job_id, answer.jobs[0].name, *sorted(states))


main()

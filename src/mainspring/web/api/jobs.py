"""The endpoints of single jobs and of lists of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.security.permissions import Scope
from mainspring.web.api.endpoint import AnswerType, ApiAnswer, ApiCall, Endpoint
from mainspring.web.api.job_views import EXAMPLE_JOB, JOB_ID, JobView, find_job, view_of

if TYPE_CHECKING:
    from mainspring.app import Mainspring


class JobEndpoints:
    """Reads jobs."""

    async def get(self, call: ApiCall[Any, Any]) -> ApiAnswer:
        """Answer one job."""
        return ApiAnswer(content=await view_of(call, await find_job(call, Scope.READ)))


def endpoints(_app: Mainspring) -> list[Endpoint]:
    """Return the declarations of this module."""
    jobs = JobEndpoints()
    return [
        Endpoint(
            name="get_job",
            method="GET",
            path="/jobs/{id}",
            subject="jobs",
            summary="Read a job.",
            scopes=(Scope.READ,),
            serve=jobs.get,
            path_parameters=JOB_ID,
            answers={200: AnswerType(type=JobView, description="The job.", example=EXAMPLE_JOB)},
            problems=("job-not-found",),
        ),
    ]
